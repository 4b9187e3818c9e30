package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/migrations"
)

// catalogue describes all that is in a schema, without the schema's name.
func catalogue(t *testing.T, db *pgtest.DB) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `
		select format('column %s.%s %s %s', table_name, column_name, data_type, column_default) from information_schema.columns where table_schema = $1
		union all select indexdef from pg_indexes where schemaname = $1
		union all select format('constraint %s %s', conname, pg_get_constraintdef(oid)) from pg_constraint where connamespace = $1::regnamespace
		union all select pg_get_functiondef(oid) from pg_proc where pronamespace = $1::regnamespace`, db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	things, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for i := range things {
		things[i] = strings.ReplaceAll(things[i], db.Schema, "claimq")
	}
	slices.Sort(things)
	return things
}

func TestTheScriptMakesWhatUpMakes(t *testing.T) {
	t.Parallel()
	byHand := pgtest.NewEmpty(t, pgtest.DSN(t))
	script, err := migrations.Script(migrations.Options{Schema: byHand.Schema})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := byHand.Pool.Exec(t.Context(), script); err != nil {
		t.Fatalf("the script fails: %v", err)
	}
	up := pgtest.New(t)
	want, got := catalogue(t, up), catalogue(t, byHand)
	if len(want) < 100 {
		t.Fatalf("only %d things in a migrated schema", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the script makes another schema than Up (-up +script):\n%s", diff)
	}
	conn := byHand.Conn()
	status, err := migrations.Read(t.Context(), conn, migrations.Options{Schema: byHand.Schema})
	if err != nil || status.Check() != nil || status.Current == 0 {
		t.Errorf("after the script: %+v, %v", status, err)
	}
	if err := migrations.Up(t.Context(), conn, migrations.Options{Schema: byHand.Schema}); err != nil {
		t.Errorf("Up after the script: %v", err)
	}
}

func TestTenThatMigrateAtOnceAllSucceed(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t, pgtest.DSN(t))
	failed := make(chan error)
	for range 10 {
		conn := db.Conn()
		go func() { failed <- migrations.Up(t.Context(), conn, migrations.Options{Schema: db.Schema}) }()
	}
	for range 10 {
		if err := <-failed; err != nil {
			t.Errorf("one of ten: %v", err)
		}
	}
	status, err := migrations.Read(t.Context(), db.Pool, migrations.Options{Schema: db.Schema})
	if err != nil || status.Check() != nil {
		t.Errorf("%+v, %v", status, err)
	}
}

func TestADatabaseWithoutTheSchemaAndOneThatIsNewerAreTold(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t, pgtest.DSN(t))
	options := migrations.Options{Schema: db.Schema}
	status, err := migrations.Read(t.Context(), db.Pool, options)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, status.Check(), fmt.Sprintf("the database has no claimq schema %q: run `claimq migrate up`", db.Schema))
	conn := db.Conn()
	if err := migrations.Up(t.Context(), conn, options); err != nil {
		t.Fatal(err)
	}
	for version, text := range map[int]string{
		1:   "schema %q is at version 1 and version %d is needed: run `claimq migrate up`",
		999: "schema %q is at version 999 and this claimq knows versions up to %d: start a newer claimq",
	} {
		if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf("update %s.schema_version set version = %d", db.Schema, version)); err != nil {
			t.Fatal(err)
		}
		status, err := migrations.Read(t.Context(), db.Pool, options)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(text, db.Schema, status.Known)
		wantError(t, status.Check(), want)
		if version == 999 {
			wantError(t, migrations.Up(t.Context(), conn, options), want)
		}
	}
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || err.Error() != text {
		t.Errorf("the error is\n%v\nand not\n%s", err, text)
	}
}
