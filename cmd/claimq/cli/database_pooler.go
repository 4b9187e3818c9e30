package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/sqlstate"
)

// probeTimeout bounds each step of the probe: a pooler whose pool is used up
// lets a transaction wait.
const probeTimeout = 5 * time.Second

// probeHolders is how many transactions the probe opens to occupy the server
// connection that it wants to miss.
const probeHolders = 4

const (
	undefinedStatement = "26000"
	duplicateStatement = "42P05"
)

// errPooler is the probe's finding.
var errPooler = errors.New("database: a pooler in transaction mode stands in front of Postgres, and named prepared statements get lost in it: set database.pooler: true (CLAIMQ_DATABASE__POOLER=true), or lead database.dsn past the pooler")

// probePooler finds a pooler in transaction mode that does not follow prepared
// statements: it prepares one, occupies the server connection that has it with a
// transaction of another client, and runs it. A direct connection, a pooler in
// session mode and one that follows prepared statements answer; others cannot
// know the statement. A probe that cannot tell finds nothing.
func probePooler(ctx context.Context, config *pgx.ConnConfig) error {
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // the probe's own queries prepare nothing
	first, backend, err := connectTo(ctx, config)
	if err != nil {
		return connectError(err)
	}
	defer closeConn(first)
	if int64(backend) == int64(first.PgConn().PID()) {
		return nil // who answers is who was connected to
	}
	if backend, err = prepareProbe(ctx, first); err != nil {
		if sqlstate.Code(err) == duplicateStatement {
			return errPooler
		}
		return fmt.Errorf("database: look for a pooler: %w", err)
	}
	occupied := false
	for i := 0; i < probeHolders && !occupied; i++ {
		holder, held, err := holdBackend(ctx, config)
		if err != nil {
			return nil // the pooler has no server connection left: nothing can be told
		}
		defer closeConn(holder)
		occupied = held == backend
	}
	if !occupied {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err = first.PgConn().ExecPrepared(ctx, probeStatement, nil, nil, nil).Read().Err
	if sqlstate.Code(err) == undefinedStatement {
		return errPooler
	}
	return nil
}

const probeStatement = "claimq_pooler_probe"

// prepareProbe prepares the probe's statement and tells in which server process,
// both in one transaction, so that it is the same one.
func prepareProbe(ctx context.Context, conn *pgx.Conn) (backend int32, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := conn.PgConn().Prepare(ctx, probeStatement, "select 1", nil); err != nil {
		return 0, err
	}
	if err := tx.QueryRow(ctx, "select pg_backend_pid()").Scan(&backend); err != nil {
		return 0, err
	}
	return backend, tx.Commit(ctx)
}

// holdBackend opens a transaction on a connection of its own and leaves it open.
func holdBackend(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, int32, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, 0, err
	}
	var backend int32
	if _, err = conn.Exec(ctx, "begin"); err == nil {
		err = conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&backend)
	}
	if err != nil {
		closeConn(conn)
		return nil, 0, err
	}
	return conn, backend, nil
}

func connectTo(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, int32, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, 0, err
	}
	var backend int32
	if err := conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&backend); err != nil {
		closeConn(conn)
		return nil, 0, err
	}
	return conn, backend, nil
}

// closeConn closes a connection within a bounded time, also after its context ended.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
