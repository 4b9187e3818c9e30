// Package localbouncer starts a PgBouncer as an ordinary child process, in
// transaction mode, in front of a Postgres: for tests that prove that nothing
// claimq does is bound to a session, and for failovers behind a pooler.
//
// Whoever can connect is let in, and is the user of the DSN that the bouncer
// stands before; the administration console is open to all (database
// "pgbouncer", simple protocol).
package localbouncer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/localproc"
)

// BinaryVariable names the environment variable that says where pgbouncer is.
const BinaryVariable = "CLAIMQ_PGBOUNCER_BIN"

// ErrNoBinary is returned, wrapped with what to install, when this machine has
// no PgBouncer.
var ErrNoBinary = errors.New("no PgBouncer found")

// startTimeout bounds Start when ctx has no deadline.
const startTimeout = 20 * time.Second

// Config says what the bouncer stands before.
type Config struct {
	// DSN of the Postgres server, with one host; its database is the one that
	// Server.DSN names. Required.
	DSN string
	// PoolSize is how many connections to Postgres there are at most. Default 20.
	PoolSize int
	// Settings are lines of pgbouncer.ini, section [pgbouncer]; they win over
	// all that the package sets itself.
	Settings map[string]string
}

// Server is a running PgBouncer. Its methods are safe for concurrent use.
type Server struct {
	// Port is where it listens on 127.0.0.1.
	Port int
	// Dir holds its configuration and log; Stop removes it.
	Dir string

	config  Config
	account *localproc.Account
	guard   *localproc.Guard

	mu       sync.Mutex
	process  *localproc.Process
	database string
}

// FindBinary returns the pgbouncer command. The error wraps [ErrNoBinary].
func FindBinary() (string, error) {
	candidates := []string{"/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer", "/usr/local/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer"}
	if named := os.Getenv(BinaryVariable); named != "" {
		candidates = []string{named}
	} else if found, err := exec.LookPath("pgbouncer"); err == nil {
		return found, nil
	}
	for _, name := range candidates {
		if found, err := exec.LookPath(name); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%w: install it (Debian, Ubuntu: apt-get install pgbouncer; macOS: brew install pgbouncer), or name the command in %s", ErrNoBinary, BinaryVariable)
}

// Start starts a bouncer and returns when a connection through it works. On an
// error nothing is left behind.
func Start(ctx context.Context, config Config) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	binary, err := FindBinary()
	if err != nil {
		return nil, err
	}
	if config.PoolSize == 0 {
		config.PoolSize = 20
	}
	server := &Server{config: config}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start pgbouncer: %w", err), server.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if server.account, err = localproc.ServiceAccount(); err != nil {
		return nil, err
	}
	if server.Dir, err = os.MkdirTemp("", "cq-bouncer-"); err != nil {
		return nil, err
	}
	if server.guard, err = localproc.NewGuard(server.Dir, syscall.SIGTERM); err != nil {
		return nil, err
	}
	if err := errors.Join(server.account.CanReach(server.Dir), server.account.Own(server.Dir)); err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		if server.Port, err = localproc.FreePort(); err != nil {
			return nil, err
		}
		err := server.launch(ctx, binary)
		if err == nil {
			return server, nil
		}
		if attempt == 3 || localproc.PortFree(server.Port) {
			return nil, err
		}
	}
}

// DSN is a connection URL through the bouncer. PgBouncer before 1.21 knows no
// prepared statements in transaction mode: a client says
// default_query_exec_mode=cache_describe.
func (s *Server) DSN() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dsn(s.database)
}

// AdminDSN is a connection URL for the administration console; it takes the
// simple protocol only.
func (s *Server) AdminDSN() string {
	return s.dsn("pgbouncer") + "&default_query_exec_mode=simple_protocol"
}

func (s *Server) dsn(database string) string {
	dsn := url.URL{
		Scheme: "postgres", User: url.User("claimq"), Host: "127.0.0.1:" + strconv.Itoa(s.Port),
		Path: database, RawQuery: "sslmode=disable",
	}
	return dsn.String()
}

// LogTail returns the last lines of the bouncer's log.
func (s *Server) LogTail(lines int) string { return localproc.Tail(s.logFile(), lines) }

func (s *Server) logFile() string { return filepath.Join(s.Dir, "pgbouncer.log") }

// PID is the bouncer's process number.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.PID()
}

// Repoint puts the bouncer before another server, as an operator does at a
// failover. Connections to the old server are closed when the transaction that
// uses them ends or fails; clients stay connected.
func (s *Server) Repoint(ctx context.Context, dsn string) error {
	s.mu.Lock()
	s.config.DSN = dsn
	err := s.writeConfig()
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("repoint pgbouncer: %w", err)
	}
	if err := s.Admin(ctx, "RELOAD"); err != nil {
		return fmt.Errorf("repoint pgbouncer: %w", err)
	}
	return nil
}

// Admin runs a command on the administration console, such as PAUSE, RESUME,
// RECONNECT or KILL.
func (s *Server) Admin(ctx context.Context, command string) error {
	conn, err := pgx.Connect(ctx, s.AdminDSN())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, command)
	return err
}

// Stop ends the bouncer and removes its files. It may be called twice.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.process != nil {
		// SIGTERM is an immediate shutdown; clients see a closed connection.
		errs = append(errs, s.process.Stop(ctx, syscall.SIGTERM))
	}
	if s.Dir != "" {
		errs = append(errs, os.RemoveAll(s.Dir))
	}
	return errors.Join(append(errs, s.guard.Release())...)
}

func (s *Server) launch(ctx context.Context, binary string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.writeConfig(); err != nil {
		return err
	}
	process, err := localproc.Start(localproc.Spec{
		Path: binary, Args: []string{s.configFile()}, Dir: s.Dir,
		LogFile: s.logFile(), Account: s.account, Guard: s.guard,
	})
	if err != nil {
		return err
	}
	s.process = process
	return s.waitReady(ctx)
}

func (s *Server) waitReady(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Done():
			return fmt.Errorf("it ended (%v); its log says:\n%s", s.process.Err(), s.LogTail(15)) //nolint:errorlint // nil when it ended well
		case <-ctx.Done():
			return fmt.Errorf("not ready (%w; last try: %w); its log says:\n%s", ctx.Err(), err, s.LogTail(15))
		case <-tick.C:
		}
	}
}

func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn(s.database)+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.Ping(ctx)
}
