package localpg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/localproc"
)

// Server is a running Postgres. Its methods are safe for concurrent use, but
// Stop, Restart, Kill and Promote wait for one another.
type Server struct {
	// Port is where the server listens on 127.0.0.1, across restarts.
	Port int
	// Dir holds data, socket and log; the socket directory is Dir itself.
	Dir string
	// BinDir is where the binaries came from.
	BinDir string
	// CAFile is the certificate authority to trust; empty without Config.TLS.
	CAFile string

	source    string // a standby's connection to its primary
	config    Config
	account   *localproc.Account
	guard     *localproc.Guard
	temporary bool

	mu      sync.Mutex
	process *localproc.Process
}

// DSN is a connection URL for a database of this server as superuser; an empty
// name means Config.Database. TLS is not asked for: add sslmode and
// sslrootcert=[Server.CAFile] to do so.
func (s *Server) DSN(database string) string { return JoinDSN(database, s) }

// JoinDSN is a connection URL over several servers that picks the one that
// takes writes, as an application with a standby would be configured. All
// servers must share one password.
func JoinDSN(database string, servers ...*Server) string {
	first := servers[0]
	if database == "" {
		database = first.config.Database
	}
	hosts := make([]string, len(servers))
	for i, server := range servers {
		hosts[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port))
	}
	query := url.Values{"sslmode": {"disable"}}
	if len(servers) > 1 {
		query.Set("target_session_attrs", "read-write")
	}
	dsn := url.URL{
		Scheme:   "postgres",
		User:     url.User(Superuser),
		Host:     strings.Join(hosts, ","),
		Path:     database,
		RawQuery: query.Encode(),
	}
	if first.config.Password != "" {
		dsn.User = url.UserPassword(Superuser, first.config.Password)
	}
	return dsn.String()
}

// DataDir is the server's data directory.
func (s *Server) DataDir() string { return filepath.Join(s.Dir, "data") }

// LogFile is where the server writes its log.
func (s *Server) LogFile() string { return filepath.Join(s.Dir, "postgres.log") }

// LogTail returns the last lines of the server's log.
func (s *Server) LogTail(lines int) string { return localproc.Tail(s.LogFile(), lines) }

// PID is the postmaster's process number.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.PID()
}

// Running tells whether the postmaster runs; a frozen one does.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.Running()
}

// Freeze stops postmaster and backends with SIGSTOP: connections stay open and
// nothing answers.
func (s *Server) Freeze() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.Freeze()
}

// Thaw wakes a frozen server.
func (s *Server) Thaw() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.Thaw()
}

// Kill ends postmaster and backends with SIGKILL, as a crash would. Data that
// was committed is there after [Server.Restart], also with NoFsync.
func (s *Server) Kill(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process.Kill()
	return nil
}

// Restart stops the server in order, when it runs, and starts it again on the
// same port and data. It returns when connections are accepted.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.halt(ctx); err != nil {
		return err
	}
	return s.launch(ctx)
}

// Halt stops the server in order and keeps its data for [Server.Restart].
func (s *Server) Halt(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(ctx)
}

// Stop stops the server, frees what a killed one has left in shared memory and
// removes a temporary directory. When ctx ends first the server is killed, and
// the error says so; everything is removed all the same. It may be called
// twice.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.process != nil {
		errs = append(errs, s.halt(ctx))
	}
	removeSharedMemory(s.DataDir())
	errs = append(errs, s.removeFiles(), s.guard.Release())
	return errors.Join(errs...)
}

// Detach lets the server run on after the parent's end, with its files. The
// Server must not be used afterwards; [StopDir] stops what it has left.
func (s *Server) Detach() error {
	if err := s.guard.KeepDir(); err != nil {
		return err
	}
	return s.guard.Release()
}

// halt does a fast shutdown: open transactions are rolled back, connections
// closed, a checkpoint written.
func (s *Server) halt(ctx context.Context) error {
	if !s.process.Running() {
		return nil
	}
	return s.process.Stop(ctx, syscall.SIGINT)
}

// launch starts the postmaster and waits until it accepts connections.
func (s *Server) launch(ctx context.Context) error {
	process, err := localproc.Start(localproc.Spec{
		Path:    filepath.Join(s.BinDir, "postgres"),
		Args:    []string{"-D", s.DataDir()},
		Env:     []string{"LC_ALL=C", "TZ=UTC"},
		Dir:     s.Dir,
		LogFile: s.LogFile(),
		Account: s.account,
		Guard:   s.guard,
	})
	if err != nil {
		return err
	}
	s.process = process
	if err := s.waitReady(ctx); err != nil {
		process.Kill()
		return err
	}
	return nil
}

// waitReady polls with real connections: an open port is not yet a server that
// answers (it may still replay its log).
func (s *Server) waitReady(ctx context.Context) error {
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Done():
			return fmt.Errorf("postgres ended while starting (%w); its log says:\n%s", exitError(s.process), s.LogTail(15))
		case <-ctx.Done():
			return fmt.Errorf("postgres is not ready (%w; last try: %w); its log says:\n%s", ctx.Err(), err, s.LogTail(15))
		case <-tick.C:
		}
	}
}

func exitError(process *localproc.Process) error {
	if err := process.Err(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.Ping(ctx)
}
