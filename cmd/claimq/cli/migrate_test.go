package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/migrations"
)

// known returns the newest schema version of this binary.
func known(t *testing.T) int {
	t.Helper()
	steps, err := migrations.SQL(migrations.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return len(steps)
}

func TestMigrateUpStatusAndAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t, pgtest.DSN(t))
	env := newTestEnv(t, "CLAIMQ_DSN="+db.DSN, "CLAIMQ_SCHEMA="+db.Schema)

	got := env.refuse(ExitFailed, "migrate", "status")
	wantAll(t, got, "the database has no claimq schema", "claimq migrate up")
	wantAll(t, env.stdout.String(), "schema   "+db.Schema, "current  0", "pending  001_base.sql, 002_claims.sql")

	wantAll(t, env.mustRun("migrate", "up"), "applied 001_base.sql\n", "applied 002_claims.sql\n", "schema "+db.Schema+" is at version")
	if got := env.mustRun("migrate", "up"); strings.Contains(got, "applied") {
		t.Errorf("a second time something is applied:\n%s", got)
	}
	var status schemaStatus
	if err := json.Unmarshal([]byte(env.mustRun("migrate", "status", "--json")), &status); err != nil {
		t.Fatal(err)
	}
	if status.Current != known(t) || status.Known != known(t) || status.Schema != db.Schema || status.Pending == nil || len(status.Pending) != 0 {
		t.Errorf("status = %+v", status)
	}
}

func TestMigrateSQLAndRolesPrintScriptsForTheSchema(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	wantAll(t, env.mustRun("migrate", "sql"), `create schema if not exists "claimq"`, `create table "claimq".queues`, "-- ---- 002_claims.sql", "commit;")
	wantAll(t, env.mustRun("migrate", "roles", "--schema", "dedup"), "dedup_worker", `grant usage on schema "dedup" to dedup_worker`)
	for _, command := range []string{"sql", "roles"} {
		wantAll(t, env.refuse(ExitConfig, "migrate", command, "--schema", "De-dup"), `schema "De-dup"`, "lower-case letters")
	}
}

func TestMigrateThroughAPoolerNeedsADirectAddress(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t, pgtest.DSN(t))
	env := newTestEnv(t, "CLAIMQ_DSN=postgres://nobody@127.0.0.1:1/none", "CLAIMQ_SCHEMA="+db.Schema, "CLAIMQ_DATABASE__POOLER=true")
	wantAll(t, env.refuse(ExitConfig, "migrate", "up"), "database.direct_dsn", "leads past it")
	env.variables = append(env.variables, "CLAIMQ_DATABASE__DIRECT_DSN="+db.DSN)
	env.mustRun("migrate", "up")
}

func TestAGroupWithoutItsCommandIsAWrongCommandLine(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	for _, test := range []struct {
		want string
		args []string
	}{
		{"claimq migrate needs one of: up, status, sql, roles", []string{"migrate"}},
		{`claimq migrate has no "satus"; did you mean "status"?`, []string{"migrate", "satus"}},
		{`unknown command "migrat" for "claimq"`, []string{"migrat"}},
		{"unknown flag: --nope", []string{"migrate", "up", "--nope"}},
		{`unknown command "extra" for "claimq migrate up"`, []string{"migrate", "up", "extra"}},
		{"flag needs an argument: --dsn", []string{"migrate", "up", "--dsn"}},
	} {
		wantAll(t, env.refuse(ExitUsage, test.args...), test.want)
		if out := env.stdout.String(); out != "" {
			t.Errorf("claimq %s prints on Stdout: %s", strings.Join(test.args, " "), out)
		}
	}
	wantAll(t, env.mustRun("--help"), "Exit codes:", "migrate", "version")
}
