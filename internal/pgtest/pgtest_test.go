package pgtest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/pgtest"
)

func value[T any](t *testing.T, dsn, query string, args ...any) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var got T
	if err := conn.QueryRow(t.Context(), query, args...).Scan(&got); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return got
}

func TestEachTestHasItsOwnMigratedSchema(t *testing.T) {
	t.Parallel()
	first, second := pgtest.New(t), pgtest.New(t)
	if first.Schema == second.Schema {
		t.Fatalf("both have the schema %s", first.Schema)
	}
	for _, db := range []*pgtest.DB{first, second} {
		if n := value[int](t, db.DSN, `select count(*)::int from pg_tables where schemaname = $1`, db.Schema); n == 0 {
			t.Errorf("schema %s holds no table", db.Schema)
		}
		var path string
		if err := db.Pool.QueryRow(t.Context(), `show search_path`).Scan(&path); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(path, db.Schema) {
			t.Errorf("the schema is in the search path %q: a statement that forgets it would work", path)
		}
	}
}

func TestConnectionsCarryTheTestsName(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var pooled string
	if err := db.Pool.QueryRow(t.Context(), `show application_name`).Scan(&pooled); err != nil {
		t.Fatal(err)
	}
	own := value[string](t, db.DSN, `show application_name`)
	if pooled != db.Name || own != db.Name || !strings.HasPrefix(db.Name, t.Name()) {
		t.Errorf("pool is named %q, own connection %q, DB says %q", pooled, own, db.Name)
	}
}

func TestLongNamesStayTellableApart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{strings.Repeat("long", 40) + "/é√", "short"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if got := value[string](t, db.DSN, `show application_name`); got != db.Name {
				t.Errorf("the server shows %q for %q", got, db.Name)
			}
		})
	}
}

func TestCleanupEndsABackendThatHoldsLocksAndDropsTheSchema(t *testing.T) {
	t.Parallel()
	var schema, name string
	t.Run("body", func(t *testing.T) {
		db := pgtest.New(t)
		schema, name = db.Schema, db.Name
		// The test forgets a transaction that holds a lock, on a connection of
		// the pool that is given back too late.
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		if _, err := tx.Exec(t.Context(), `create table `+db.Schema+`.held (n int)`); err != nil {
			t.Fatal(err)
		}
		forgotten, err := pgx.Connect(t.Context(), db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := forgotten.Exec(t.Context(), `begin; select pg_advisory_xact_lock_shared(1)`); err != nil {
			t.Fatal(err)
		}
	})
	if n := value[int](t, pgtest.DSN(t), `select count(*)::int from pg_namespace where nspname = $1`, schema); n != 0 {
		t.Errorf("schema %s is there after its test", schema)
	}
	if n := value[int](t, pgtest.DSN(t), `select count(*)::int from pg_stat_activity where application_name = $1`, name); n != 0 {
		t.Errorf("%d backends of %s are there after the test", n, name)
	}
}

func TestServerOfItsOwnCanFailOver(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, localpg.Config{})
	db := pgtest.NewOn(t, primary.DSN(""))
	standby := pgtest.Standby(t, primary, localpg.Config{})
	if err := standby.WaitCaughtUp(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	if err := primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, standby.DSN(""), `select count(*)::int from pg_tables where schemaname = $1`, db.Schema); n == 0 {
		t.Error("the promoted standby lacks the migrated schema")
	}
}

func TestMissingServerIsToldWithTheCommandToRun(t *testing.T) {
	recorder := &failRecorder{TB: t}
	t.Setenv(pgtest.DSNVariable, "")
	func() {
		defer func() { _ = recover() }()
		pgtest.DSN(recorder)
	}()
	for _, want := range []string{"make test", "internal/cmd/teststack", pgtest.DSNVariable} {
		if !strings.Contains(recorder.message, want) {
			t.Errorf("the failure does not name %q: %s", want, recorder.message)
		}
	}
}
