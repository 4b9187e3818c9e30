package localpg

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// StartStandby starts a streaming replica of primary, which stays a server of
// its own: stop both. Config.Database, Config.Password and the roles are the
// primary's; so are its settings, unless config changes them. The binaries need
// pg_basebackup, which downloaded ones lack.
//
// Replication is asynchronous unless the primary's synchronous_standby_names
// says otherwise; the standby's name there is "claimq_standby".
func StartStandby(ctx context.Context, primary *Server, config Config) (*Server, error) {
	config.Database, config.Password = primary.config.Database, primary.config.Password
	if config.BinDir == "" {
		config.BinDir = primary.BinDir
	}
	if _, err := os.Stat(filepath.Join(config.BinDir, "pg_basebackup")); err != nil {
		return nil, fmt.Errorf("a standby needs pg_basebackup in %s: %w; install Postgres %d or newer (Debian, Ubuntu: apt-get install postgresql), or name the directory of its binaries in %s", config.BinDir, err, MinimumMajor, BinDirVariable)
	}
	source := primary.DSN("postgres") + "&application_name=claimq_standby"
	standby, err := start(ctx, config, func(ctx context.Context, s *Server) error {
		return s.run(ctx, "pg_basebackup", nil,
			"-D", s.DataDir(), "-d", source, "-X", "stream", "-c", "fast", "-R", "--no-sync")
	})
	if err != nil {
		return nil, fmt.Errorf("start standby: %w", err)
	}
	standby.source = source
	return standby, nil
}

// Position is how far a server's history reaches: what it has written, or as a
// standby received and replayed, as a number of bytes since the beginning of
// its timeline's ancestor.
func (s *Server) Position(ctx context.Context) (int64, error) {
	const query = `
		select case when pg_is_in_recovery()
			then coalesce(pg_last_wal_replay_lsn() - '0/0'::pg_lsn, 0)
			else pg_current_wal_flush_lsn() - '0/0'::pg_lsn end::bigint`
	var position int64
	err := s.queryRow(ctx, query, &position)
	return position, err
}

// WaitCaughtUp waits until the standby shows everything that primary had
// committed when the call began.
func (s *Server) WaitCaughtUp(ctx context.Context, primary *Server) error {
	// With synchronous_commit off a commit is acknowledged before it is flushed,
	// and only what is flushed is sent. A durable commit flushes all before it.
	// It is local, so that it does not wait for the standby itself.
	const flush = `set synchronous_commit = local; select pg_logical_emit_message(true, 'claimq', 'flush')`
	if err := primary.exec(ctx, flush); err != nil {
		return fmt.Errorf("wait for standby: %w", err)
	}
	goal, err := primary.Position(ctx)
	if err != nil {
		return fmt.Errorf("wait for standby: %w", err)
	}
	return s.await(ctx, "the standby to catch up", func(ctx context.Context) (bool, error) {
		position, err := s.Position(ctx)
		return position >= goal, err
	})
}

// Disconnect cuts a standby off from its primary: it receives nothing that is
// committed after the call has returned, so that [Server.Promote] makes a
// primary that lacks it. (Pausing the replay would not: a promotion first
// replays whatever has been received.)
func (s *Server) Disconnect(ctx context.Context) error {
	if err := s.reconfigure(ctx, `alter system set primary_conninfo = ''`); err != nil {
		return fmt.Errorf("disconnect standby: %w", err)
	}
	return s.await(ctx, "the standby's receiver to end", func(ctx context.Context) (bool, error) {
		var receivers int
		err := s.queryRow(ctx, `select count(*) from pg_stat_get_wal_receiver() where pid is not null`, &receivers)
		return receivers == 0, err
	})
}

// Reconnect undoes [Server.Disconnect], if the primary still has the log that
// is missing.
func (s *Server) Reconnect(ctx context.Context) error {
	// ALTER SYSTEM takes no parameters.
	literal := "'" + strings.ReplaceAll(s.source, "'", "''") + "'"
	if err := s.reconfigure(ctx, `alter system set primary_conninfo = `+literal); err != nil {
		return fmt.Errorf("reconnect standby: %w", err)
	}
	return nil
}

// PauseReplay keeps a standby from showing what it goes on to receive.
func (s *Server) PauseReplay(ctx context.Context) error {
	return s.exec(ctx, `select pg_wal_replay_pause()`)
}

// ResumeReplay undoes [Server.PauseReplay].
func (s *Server) ResumeReplay(ctx context.Context) error {
	return s.exec(ctx, `select pg_wal_replay_resume()`)
}

// Promote makes a standby a primary on a new timeline and returns when it takes
// writes. It does nothing to the old primary: kill or fence that first.
func (s *Server) Promote(ctx context.Context) error {
	if err := s.exec(ctx, `select pg_promote(false)`); err != nil {
		return fmt.Errorf("promote standby: %w", err)
	}
	return s.await(ctx, "the standby to become primary", func(ctx context.Context) (bool, error) {
		var recovering bool
		err := s.queryRow(ctx, `select pg_is_in_recovery()`, &recovering)
		return !recovering, err
	})
}

func (s *Server) reconfigure(ctx context.Context, statement string) error {
	if err := s.exec(ctx, statement); err != nil {
		return err
	}
	return s.exec(ctx, `select pg_reload_conf()`)
}

func (s *Server) exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, statement)
	return err
}

func (s *Server) queryRow(ctx context.Context, query string, into any) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, query).Scan(into)
}

// awaitTimeout bounds what a standby is waited for when ctx has no deadline.
const awaitTimeout = 30 * time.Second

func (s *Server) await(ctx context.Context, what string, reached func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := reached(ctx)
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; its log says:\n%s", what, ctx.Err(), s.LogTail(10))
		case <-tick.C:
		}
	}
}
