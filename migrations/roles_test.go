package migrations_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/sqlstate"
	"github.com/claimq/claimq/migrations"
)

var groups = []string{"owner", "worker", "operator", "reader"}

// makeRoles runs the script of the roles and takes them away after the test: they
// belong to the server and not to the schema.
func makeRoles(t *testing.T, db *pgtest.DB) {
	t.Helper()
	runRoles(t, db)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, group := range groups {
			for _, role := range []string{db.Schema + "_" + group + "_login", db.Schema + "_" + group} {
				var there bool
				if err := db.Pool.QueryRow(ctx, "select to_regrole($1) is not null", role).Scan(&there); err != nil || !there {
					continue
				}
				if _, err := db.Pool.Exec(ctx, fmt.Sprintf("drop owned by %[1]s cascade; drop role %[1]s", role)); err != nil {
					t.Errorf("clean up: drop role %s: %v", role, err)
				}
			}
		}
	})
}

func runRoles(t *testing.T, db *pgtest.DB) {
	t.Helper()
	script, err := migrations.Roles(migrations.Options{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool.Exec(t.Context(), script); err != nil {
		t.Fatalf("the script of the roles: %v", err)
	}
}

// login opens a connection as somebody who is granted one of the groups.
func login(t *testing.T, db *pgtest.DB, group string) *pgx.Conn {
	t.Helper()
	role := db.Schema + "_" + group + "_login"
	create := fmt.Sprintf("create role %s login password 'test' in role %s_%s", role, db.Schema, group)
	if _, err := db.Pool.Exec(t.Context(), create); err != nil {
		t.Fatal(err)
	}
	if group == "owner" {
		if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf("alter role %s set role = '%s_owner'", role, db.Schema)); err != nil {
			t.Fatal(err)
		}
	}
	config := db.Pool.Config().ConnConfig
	config.User, config.Password = role, "test"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("log in as %s: %v", role, err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// may runs a statement and takes it back, and reports whether the server allowed
// it. Any other failure is the test's.
func may(t *testing.T, conn *pgx.Conn, schema, statement string) bool {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), strings.ReplaceAll(statement, "claimq.", schema+"."))
	if err != nil && sqlstate.Code(err) != sqlstate.InsufficientRights {
		t.Fatalf("%s: %v", statement, err)
	}
	return err == nil
}

// The rights of each role, by what it does with them. A letter stands for who may:
// o(wner), w(orker), p (operator), r(eader).
var rights = []struct{ statement, who string }{
	{"create table claimq.extra (id int)", "o"},
	{"alter table claimq.queues add column extra int", "o"},
	{"drop table claimq.results", "o"},
	{"drop schema claimq. cascade", "o"},
	{"update claimq.schema_version set version = 0", "o"},
	{"select version from claimq.schema_version", "owpr"},

	{"insert into claimq.queues (name, group_name, rule) values ('q', 'q', '')", "ow"},
	{"update claimq.queues set paused_at = now(), paused_by = 'me', paused_why = 'x'", "owp"},
	{"delete from claimq.queues", "o"},
	{"select * from claimq.queues", "owpr"},

	{"insert into claimq.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs) values (0, gen_random_uuid(), 1, '{}', '{}', '{}', '{}', '{}')", "owp"},
	{"insert into claimq.positions_0 (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs) values (0, gen_random_uuid(), 1, '{}', '{}', '{}', '{}', '{}')", "owp"},
	{"delete from claimq.positions", "o"},
	{"update claimq.positions set queue = 2", "o"},
	{"truncate claimq.positions_1", "ow"},
	{"select * from claimq.positions_of(1)", "owpr"},
	{"select claimq.rotate_positions()", "ow"},
	{"select claimq.take_ownership(1, 'me', gen_random_uuid(), '{}', '{}')", "owp"},
	{"delete from claimq.owners", "o"},

	{"insert into claimq.claims_0 (record_at, queue, segment, fingerprint_version, id, fingerprint) values (now(), 1, 0, 0, gen_random_uuid(), gen_random_uuid())", "owp"},
	{"delete from claimq.claims", "owp"},
	{"truncate claimq.claims_3", "ow"},
	{"select * from claimq.claims", "owpr"},
	{"select claimq.claim_id('q', null, null, 'id'::text)", "owpr"},
	{"insert into claimq.claim_phases (phase, inserts, lookups) values (1, '{0}', '{}')", "ow"},
	{"select * from claimq.claim_segment_clocks", "owpr"},
	{"delete from claimq.claim_segment_clocks", "ow"},
	{"select * from claimq.result_slots", "owpr"},
	{"update claimq.result_slots set closed = now()", "ow"},
	{"truncate claimq.claims_0", "ow"},
	{"truncate claimq.results_0", "ow"},

	{"select id, error_message, record_topic from claimq.delayed", "owpr"},
	{"select count(*) from claimq.delayed", "owpr"},
	{"select record_value from claimq.delayed", "owp"},
	{"select * from claimq.dead_letters", "owp"},
	{"select record_key from claimq.dead_letters", "owp"},
	{"select header_values from claimq.dead_letters", "owp"},
	{"select id, reason, error_message from claimq.dead_letters", "owpr"},
	{"update claimq.dead_letters set state = 'discarded', settled_at = now()", "owp"},
	{"delete from claimq.dead_letters", "o"},
	{"delete from claimq.delayed_keys", "owp"},

	{"insert into claimq.outbox (bucket, id, topic) values (0, gen_random_uuid(), 't')", "owp"},
	{"select value from claimq.outbox", "owp"},
	{"select topic, count(*) from claimq.outbox group by topic", "owpr"},
	{"truncate claimq.outbox_0", "ow"},
	{"select claimq.rotate_outbox()", "ow"},
	{"select id from claimq.relay_rows()", "owpr"},
	{"select claimq.relay_take(1::smallint, 0::smallint, gen_random_uuid(), 'me', '1 s')", "ow"},
	{"select claimq.outbox_release(1)", "ow"},
	{"select count(*) from claimq.outbox_due where due_at > now()", "owpr"},
	{"select value from claimq.outbox_due", "owp"},
	{"delete from claimq.outbox_due", "ow"},
	{"update claimq.outbox_held set next_at = now()", "owp"},

	{"insert into claimq.audit (who, why, action) values ('me', 'x', 'y')", "owp"},
	{"update claimq.audit set who = 'nobody'", "o"},
	{"delete from claimq.audit", "o"},
	{"select * from claimq.audit", "opr"},
	{"insert into claimq.workers (instance, queues, host, version) values ('i', '{}', 'h', 'v')", "ow"},
	{"select * from claimq.workers", "owpr"},
}

func TestEachRoleMayWhatItNeedsAndNoMore(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	makeRoles(t, db)
	for letter, group := range map[string]string{"o": "owner", "w": "worker", "p": "operator", "r": "reader"} {
		t.Run(group, func(t *testing.T) {
			conn := login(t, db, group)
			for _, right := range rights {
				statement := strings.ReplaceAll(right.statement, "schema claimq. ", "schema "+db.Schema+" ")
				want := strings.Contains(right.who, letter)
				if got := may(t, conn, db.Schema, statement); got != want {
					t.Errorf("%s may is %v, want %v: %s", group, got, want, right.statement)
				}
			}
		})
	}
}

func TestSomebodyElseSeesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	makeRoles(t, db)
	role := db.Schema + "_reader_login" // cleaned up with the others
	if _, err := db.Pool.Exec(t.Context(), "create role "+role+" login password 'test'"); err != nil {
		t.Fatal(err)
	}
	config := db.Pool.Config().ConnConfig
	config.User, config.Password = role, "test"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	for _, right := range rights {
		statement := strings.ReplaceAll(right.statement, "schema claimq. ", "schema "+db.Schema+" ")
		if may(t, conn, db.Schema, statement) {
			t.Errorf("anybody may: %s", right.statement)
		}
	}
}

// Every table is decided on: one that a new migration brings and the script does
// not name would be closed to the workers.
func TestTheScriptNamesEveryTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	makeRoles(t, db)
	rows, err := db.Pool.Query(t.Context(), `
		select c.relname from pg_class c
		 where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'p', 'v')
		   and not has_any_column_privilege($1 || '_reader', c.oid, 'select')`, db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(closed) > 0 {
		t.Errorf("no reader can see %s: name it in roles.sql", strings.Join(closed, ", "))
	}
	var foreign int
	err = db.Pool.QueryRow(t.Context(), `
		select (select count(*) from pg_class where relnamespace = $1::regnamespace and relowner <> ($1 || '_owner')::regrole and relkind <> 'c')
		     + (select count(*) from pg_proc where pronamespace = $1::regnamespace and proowner <> ($1 || '_owner')::regrole)
		     + (select count(*) from pg_type where typnamespace = $1::regnamespace and typowner <> ($1 || '_owner')::regrole)`,
		db.Schema).Scan(&foreign)
	if err != nil || foreign > 0 {
		t.Errorf("%d objects are not the owner's (%v)", foreign, err)
	}
}

// aclText is all that is granted in a schema, in order.
func aclText(t *testing.T, db *pgtest.DB) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `
		select format('%s %s %s', c.relname, c.relacl, a.attacl)
		  from pg_class c left join pg_attribute a on a.attrelid = c.oid and a.attacl is not null
		 where c.relnamespace = $1::regnamespace
		union all select format('%s %s', oid::regprocedure, proacl) from pg_proc where pronamespace = $1::regnamespace
		union all select nspacl::text from pg_namespace where oid = $1::regnamespace`, db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	granted, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(granted)
	return granted
}

func TestRunningTheScriptAgainChangesNothingAndTakesExtraRightsAway(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	makeRoles(t, db)
	once := aclText(t, db)
	if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf("grant all on %[1]s.audit, %[1]s.claims to %[1]s_reader", db.Schema)); err != nil {
		t.Fatal(err)
	}
	runRoles(t, db)
	if diff := cmp.Diff(once, aclText(t, db)); diff != "" {
		t.Errorf("the rights differ after a second run (-first +second):\n%s", diff)
	}
}

// The order that the documentation gives: roles first, then the owner's login
// migrates without any right in the database, then the roles again.
func TestTheOwnerMigratesWithoutOtherRights(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t, pgtest.DSN(t))
	makeRoles(t, db)
	owner := login(t, db, "owner")
	if err := migrations.Up(t.Context(), owner, migrations.Options{Schema: db.Schema}); err != nil {
		t.Fatalf("migrate as the owner: %v", err)
	}
	runRoles(t, db)
	worker := login(t, db, "worker")
	if !may(t, worker, db.Schema, "insert into claimq.queues (name, group_name, rule) values ('q', 'q', '')") {
		t.Error("the worker cannot register a queue")
	}
	status, err := migrations.Read(t.Context(), worker, migrations.Options{Schema: db.Schema})
	if err != nil || status.Check() != nil {
		t.Errorf("the worker reads %+v, %v", status, err)
	}
	if err := migrations.Up(t.Context(), owner, migrations.Options{Schema: db.Schema}); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestASchemaNameThatCouldBreakTheScriptIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Claimq", "a b", "x'; drop table y; --", strings.Repeat("a", 51), "1a", `a"b`} {
		if _, err := migrations.Roles(migrations.Options{Schema: name}); err == nil {
			t.Errorf("Roles accepts schema %q", name)
		}
		if _, err := migrations.Script(migrations.Options{Schema: name}); err == nil {
			t.Errorf("Script accepts schema %q", name)
		}
	}
}
