package pgtest

import (
	"context"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// drop ends what the test has left behind and removes its schema. Backends go
// first: one that sits in a transaction would hold locks on the tables.
func (db *DB) drop(dsn string) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	// Close waits for connections that the test has not given back; their
	// backends end below, so it must not come first.
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		db.Pool.Close()
	}()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		if dsn == os.Getenv(DSNVariable) {
			db.t.Errorf("clean up: connect to the test server: %v", err)
		}
		return
	}
	defer conn.Close(ctx)
	const terminate = `
		select count(pg_terminate_backend(pid, 5000))
		from pg_stat_activity
		where application_name = $1 and pid <> pg_backend_pid()`
	if _, err := conn.Exec(ctx, terminate, db.Name); err != nil {
		db.t.Errorf("clean up: end the test's backends: %v", err)
	}
	if _, err := conn.Exec(ctx, `drop schema if exists `+pgx.Identifier{db.Schema}.Sanitize()+` cascade`); err != nil {
		db.t.Errorf("clean up: drop the test's schema: %v", err)
	}
	select {
	case <-closed:
	case <-ctx.Done():
		db.t.Errorf("clean up: the test has not given back all connections of its pool")
	}
}

// applicationName keeps the end of a test's name, which tells subtests apart,
// and the unique part.
func applicationName(test, unique string) string {
	test = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' { // Postgres replaces the others itself
			return '?'
		}
		return r
	}, test)
	if room := maxName - len(unique) - 1; len(test) > room {
		test = test[len(test)-room:]
	}
	return test + "#" + unique
}

// withApplicationName adds the application name to a connection URL or to a
// string of keywords and values.
func withApplicationName(t testing.TB, dsn, name string) string {
	t.Helper()
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " application_name='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(name) + "'"
	}
	base, query, _ := strings.Cut(dsn, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatalf("the DSN of the test server: %v", err)
	}
	values.Set("application_name", name)
	return base + "?" + values.Encode()
}

// HostPort returns host and port of a DSN's first server, for a proxy that is
// to stand in front of it.
func HostPort(t testing.TB, dsn string) string {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("the DSN of the test server: %v", err)
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}
