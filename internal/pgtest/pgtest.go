package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/migrations"
)

// DSNVariable names the environment variable that says where the shared test
// server is; its role must be allowed to create schemas and to end the
// backends of others.
const DSNVariable = "CLAIMQ_TEST_DSN"

// cleanupTimeout bounds what happens after a test; a test's own context has
// ended by then.
const cleanupTimeout = 30 * time.Second

// maxName is what Postgres keeps of an application name.
const maxName = 63

// DB is one test's schema, migrated, and a pool to work with it.
type DB struct {
	// Pool has application_name set to Name. The schema is not in its
	// search_path: statements say it, as claimq's own do.
	Pool *pgxpool.Pool
	// Schema is the name of the test's schema, of lower-case letters, digits
	// and underscores; it needs no quoting.
	Schema string
	// Name is the application name of all connections made here: the end of
	// the test's name and a part that is unique.
	Name string
	// DSN is the server's, with the application name in it.
	DSN string

	t testing.TB
}

// DSN returns the shared server's connection URL, or fails the test and says
// what to run.
func DSN(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv(DSNVariable)
	if dsn == "" {
		t.Fatalf("%s is not set: this test needs a real Postgres. Run\n\n\tmake test\n\nor, for some packages only,\n\n\tgo run ./internal/cmd/teststack -kafka=false -- go test ./...\n\nor set %s to the URL of a server of your own (superuser)", DSNVariable, DSNVariable)
	}
	return dsn
}

// New makes and migrates a schema for the test in the shared server. When the
// test ends the pool is closed, backends that the test has left are ended, and
// the schema is dropped with all in it.
func New(t testing.TB) *DB {
	t.Helper()
	return NewOn(t, DSN(t))
}

// NewOn is [New] for a server of the test's own. At cleanup it is no failure
// that this server is gone.
func NewOn(t testing.TB, dsn string) *DB {
	t.Helper()
	db := NewEmpty(t, dsn)
	conn := db.Conn()
	if err := migrations.Up(t.Context(), conn, migrations.Options{Schema: db.Schema}); err != nil {
		t.Fatalf("migrate schema %s: %v", db.Schema, err)
	}
	return db
}

// NewEmpty is [NewOn] without the migration: the schema does not exist, and is
// dropped at cleanup when the test has made it.
func NewEmpty(t testing.TB, dsn string) *DB {
	t.Helper()
	suffix := make([]byte, 6)
	_, _ = rand.Read(suffix) // never fails (crypto/rand)
	unique := hex.EncodeToString(suffix)
	db := &DB{Schema: "t_" + unique, Name: applicationName(t.Name(), unique), t: t}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("the DSN of the test server: %v", err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = db.Name
	config.MaxConns = 20
	db.DSN = withApplicationName(t, dsn, db.Name)
	db.Pool, err = pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("connect to the test server: %v", err)
	}
	t.Cleanup(func() { db.drop(dsn) })
	if err := db.Pool.Ping(t.Context()); err != nil {
		t.Fatalf("connect to the test server: %v", err)
	}
	return db
}

// Conn opens a connection of its own, outside the pool, which is closed at the
// end of the test.
func (db *DB) Conn() *pgx.Conn {
	db.t.Helper()
	conn, err := pgx.Connect(db.t.Context(), db.DSN)
	if err != nil {
		db.t.Fatalf("connect to the test server: %v", err)
	}
	db.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// Server starts a Postgres for this test alone, without fsync, and stops it at
// the end. It waits for no shutdown: the data is thrown away.
func Server(t testing.TB, config localpg.Config) *localpg.Server {
	t.Helper()
	config.NoFsync = true
	server, err := localpg.Start(t.Context(), config)
	if err != nil {
		t.Fatalf("start a Postgres for this test: %v", err)
	}
	stopAtEnd(t, server)
	return server
}

// Standby starts a streaming replica of a server for this test alone.
func Standby(t testing.TB, primary *localpg.Server, config localpg.Config) *localpg.Server {
	t.Helper()
	config.NoFsync = true
	standby, err := localpg.StartStandby(t.Context(), primary, config)
	if err != nil {
		t.Fatalf("start a standby for this test: %v", err)
	}
	stopAtEnd(t, standby)
	return standby
}

func stopAtEnd(t testing.TB, server *localpg.Server) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if t.Failed() {
			t.Logf("the log of the test's own Postgres on port %d ends with:\n%s", server.Port, server.LogTail(40))
		}
		_ = server.Kill(ctx)
		if err := server.Stop(ctx); err != nil {
			t.Errorf("stop the Postgres of this test: %v", err)
		}
	})
}
