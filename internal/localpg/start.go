package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/localcert"
	"github.com/claimq/claimq/internal/localproc"
)

// startTimeout bounds Start when ctx has no deadline: initdb, recovery and a
// slow disk included.
const startTimeout = 2 * time.Minute

// socketPathLimit is what the strictest system (macOS, 104 bytes) leaves for
// the directory of ".s.PGSQL.65535" and its lock file.
const socketPathLimit = 80

// Start starts a server and returns when it accepts connections and
// Config.Database exists. On an error nothing is left behind. When ctx ends
// after Start has returned the server runs on.
func Start(ctx context.Context, config Config) (*Server, error) {
	return start(ctx, config, initDataDir)
}

// fillDataDir makes the content of a new server's data directory.
type fillDataDir func(ctx context.Context, server *Server) error

func start(ctx context.Context, config Config, fill fillDataDir) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	server, err := prepare(ctx, config.withDefaults())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if _, statErr := os.Stat(filepath.Join(server.DataDir(), "PG_VERSION")); statErr != nil {
		if err := fill(ctx, server); err != nil {
			return nil, err
		}
	}
	if err := server.launchOnFreePort(ctx); err != nil {
		return nil, err
	}
	if err := server.createDatabase(ctx); err != nil {
		return nil, err
	}
	return server, nil
}

// prepare finds binaries and account and makes the directory with its guard.
func prepare(ctx context.Context, config Config) (*Server, error) {
	binDir, err := binaries(ctx, config)
	if err != nil {
		return nil, err
	}
	account, err := localproc.ServiceAccount()
	if err != nil {
		return nil, err
	}
	server := &Server{BinDir: binDir, Dir: config.Dir, config: config, account: account, temporary: config.Dir == ""}
	if err := server.makeDir(); err != nil {
		return nil, err
	}
	guarded := ""
	if server.temporary {
		guarded = server.Dir
	}
	// SIGQUIT is the postmaster's immediate shutdown: it takes its backends
	// and its shared memory along and asks nobody.
	server.guard, err = localproc.NewGuard(guarded, syscall.SIGQUIT)
	if err != nil {
		return nil, errors.Join(err, server.removeFiles())
	}
	return server, nil
}

func binaries(ctx context.Context, config Config) (string, error) {
	if config.BinDir != "" {
		if _, err := serverMajor(config.BinDir); err != nil {
			return "", fmt.Errorf("BinDir %s: %w", config.BinDir, err)
		}
		return config.BinDir, nil
	}
	dir, err := FindBinaries()
	if err == nil || config.NoDownload || os.Getenv(BinDirVariable) != "" {
		return dir, err
	}
	return download(ctx, config.Logf)
}

// makeDir makes the server's directory. Only its account may enter: whoever can
// open the socket is superuser.
func (s *Server) makeDir() error {
	if s.temporary {
		parent := os.TempDir()
		if len(parent)+len("/cq-pg-0123456789") > socketPathLimit {
			parent = "/tmp"
		}
		dir, err := os.MkdirTemp(parent, "cq-pg-")
		if err != nil {
			return fmt.Errorf("make the server's directory: %w", err)
		}
		s.Dir = dir
	}
	absolute, err := filepath.Abs(s.Dir)
	if err != nil {
		return fmt.Errorf("Dir: %w", err)
	}
	s.Dir = absolute
	if len(s.Dir) > socketPathLimit {
		return fmt.Errorf("Dir %s is %d bytes long; a Unix socket in it needs at most %d: choose a shorter path", s.Dir, len(s.Dir), socketPathLimit)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("make the server's directory: %w", err)
	}
	if err := errors.Join(s.account.CanReach(s.Dir), s.account.Own(s.Dir)); err != nil {
		return errors.Join(err, s.removeFiles())
	}
	return nil
}

func (s *Server) removeFiles() error {
	if !s.temporary {
		return nil
	}
	return os.RemoveAll(s.Dir)
}

// run runs one of the tools as the server's account.
func (s *Server) run(ctx context.Context, tool string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.BinDir, tool), args...)
	cmd.Dir = s.Dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "TZ=UTC"), env...)
	cmd.SysProcAttr = s.account.SysProcAttr()
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w; it says:\n%s", tool, err, output)
	}
	return nil
}

func initDataDir(ctx context.Context, s *Server) error {
	args := []string{"-D", s.DataDir(), "-U", Superuser, "-E", "UTF8", "--locale=C", "--auth-local=trust"}
	if s.config.NoFsync {
		args = append(args, "--no-sync")
	}
	if s.config.Password == "" {
		return s.run(ctx, "initdb", nil, append(args, "--auth-host=trust")...)
	}
	file := filepath.Join(s.Dir, "password")
	if err := os.WriteFile(file, []byte(s.config.Password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the password for initdb: %w", err)
	}
	defer os.Remove(file)
	if err := s.account.Own(file); err != nil {
		return err
	}
	return s.run(ctx, "initdb", nil, append(args, "--auth-host=scram-sha-256", "--pwfile="+file)...)
}

// launchOnFreePort starts the server, and tries other ports when the free one
// was taken by somebody else in the meantime.
func (s *Server) launchOnFreePort(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		s.Port = s.config.Port
		if s.Port == 0 {
			port, err := localproc.FreePort()
			if err != nil {
				return err
			}
			s.Port = port
		}
		if err := s.configure(); err != nil {
			return err
		}
		err := s.launch(ctx)
		if err == nil {
			return nil
		}
		if s.config.Port != 0 || attempt == 5 || localproc.PortFree(s.Port) {
			return err
		}
	}
}

func (s *Server) configure() error {
	var files certificateFiles
	if s.config.TLS {
		certificate, err := localcert.Generate(filepath.Join(s.Dir, "tls"))
		if err != nil {
			return err
		}
		files = certificateFiles{ca: certificate.CAFile, cert: certificate.CertFile, key: certificate.KeyFile}
		s.CAFile = files.ca
	}
	if err := writeSettings(s.DataDir(), s.config.settings(s.Port, s.Dir, s.BinDir, files)); err != nil {
		return err
	}
	return s.account.Own(s.Dir)
}

func (s *Server) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("create database %s: %w", s.config.Database, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var present bool
	const exists = `select pg_is_in_recovery() or exists (select from pg_database where datname = $1)`
	if err := conn.QueryRow(ctx, exists, s.config.Database).Scan(&present); err != nil {
		return fmt.Errorf("create database %s: %w", s.config.Database, err)
	}
	if present {
		return nil
	}
	if _, err := conn.Exec(ctx, "create database "+pgx.Identifier{s.config.Database}.Sanitize()); err != nil {
		return fmt.Errorf("create database %s: %w", s.config.Database, err)
	}
	return nil
}
