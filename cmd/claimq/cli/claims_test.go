package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/claimq/claimq/internal/claimsimport"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
)

// databaseEnv is an Env with a migrated schema of the test's own.
func databaseEnv(t *testing.T) (*testEnv, *pgtest.DB) {
	t.Helper()
	db := pgtest.New(t)
	return newTestEnv(t, "CLAIMQ_DSN="+db.DSN, "CLAIMQ_SCHEMA="+db.Schema, "CLAIMQ_OPERATOR=ada"), db
}

func dbExec(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), pgschema.Schema(db.Schema).SQL(sql), args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func addQueue(t *testing.T, db *pgtest.DB, name string) {
	t.Helper()
	dbExec(t, db, `insert into claimq.queues (name, group_name, rule, config) values ($1, $1, 'id(key)', '{"claims": "id"}')`, name)
}

// decodeJSON reads what a command printed.
func decodeJSON[T any](t *testing.T, text string) T {
	t.Helper()
	var value T
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("read what the command printed: %v\n%s", err, text)
	}
	return value
}

func TestClaimsImportThenShow(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	list := writeFile(t, "done.txt", "o-1\no-2\no-1\n")
	wantAll(t, env.mustRun("claims", "import", "--queue", "orders", "--tenant", "acme", list), "2 ids are claimed now, 1 was already", "line 3")

	shown := env.mustRun("claims", "show", "--queue", "orders", "--tenant", "acme", "o-1")
	wantAll(t, shown, "o-1", `"acme"`, "outside Kafka", "nothing conflicts with it", "result         none")
	view := decodeJSON[claimView](t, env.mustRun("claims", "show", "-q", "orders", "--tenant", "acme", "o-1", "--json"))
	view.ClaimedAt, view.RecordAt = time.Time{}, time.Time{}
	tenant := "acme"
	want := claimView{Queue: "orders", Tenant: &tenant, ID: "o-1", Claim: view.Claim, Segments: []int16{0}}
	if diff := cmp.Diff(want, view); diff != "" {
		t.Errorf("claims show --json (-want +got):\n%s", diff)
	}
	// The digest that a person computes in SQL is the same.
	var digest string
	if err := db.Pool.QueryRow(t.Context(), "select "+db.Schema+".claim_id('orders', 'acme', null, 'o-1')").Scan(&digest); err != nil || digest != view.Claim {
		t.Errorf("the claim is %s, and SQL computes %s, %v", view.Claim, digest, err)
	}
	wantAll(t, env.refuse(ExitNothing, "claims", "show", "--queue", "orders", "o-1"), `the id "o-1" has no claim`, "tenant and operation must be given")
}

func TestClaimsShowTellsWhereAnIDWasFirstSeen(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	dbExec(t, db, `insert into claimq.topics (topic_id, name) values (gen_random_uuid(), 'orders.v1')`)
	dbExec(t, db, `insert into claimq.claims (topic, partition, "offset", record_at, queue, segment, fingerprint_version, id, fingerprint, shown)
		values (1, 2, 42, '2026-01-02 03:04:05Z', 1, 3, 1, claimq.claim_id('orders', null, 'ship', 'o-1'), '00000000-0000-0000-0000-0000000000aa', 'o-1')`)
	dbExec(t, db, `insert into claimq.results (slot, claim, value, expires_at) values (0, claimq.claim_id('orders', null, 'ship', 'o-1'), 'secret', now() + interval '1 hour')`)
	shown := env.mustRun("claims", "show", "--queue", "orders", "--operation", "ship", "o-1")
	wantAll(t, shown, "orders.v1[2]@42", "2026-01-02 03:04:05 UTC", "00000000-0000-0000-0000-0000000000aa (version 1)", "kept until", "[3]")
	if strings.Contains(shown, "secret") {
		t.Errorf("the result is printed:\n%s", shown)
	}
}

func TestClaimsForget(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	env.Stdin = strings.NewReader("o-1\n")
	env.mustRun("claims", "import", "--queue", "orders", "-")

	wantAll(t, env.refuse(ExitUsage, "claims", "forget", "--queue", "orders", "o-1"), "--why is missing")
	env.mustRun("claims", "show", "--queue", "orders", "o-1")
	wantAll(t, env.mustRun("claims", "forget", "--queue", "orders", "o-1", "--why", "INC-12"),
		"Forgotten, by ada", "handled as new", "same ids and target keys")
	env.refuse(ExitNothing, "claims", "show", "--queue", "orders", "o-1")
	env.refuse(ExitNothing, "claims", "forget", "--queue", "orders", "o-1", "--why", "INC-12")

	var who, why string
	if err := db.Pool.QueryRow(t.Context(), "select who, why from "+db.Schema+".audit").Scan(&who, &why); err != nil || who != "ada" || why != "INC-12" {
		t.Errorf("the audit has %q, %q, %v, want ada and INC-12 in one row", who, why, err)
	}
}

func TestClaimsForgetAsJSONWithAnOperatorOfItsOwn(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	env.Stdin = strings.NewReader("o-1\n")
	env.mustRun("claims", "import", "--queue", "orders", "-")
	f := decodeJSON[forgotten](t, env.mustRun("claims", "forget", "--queue", "orders", "o-1", "--why", "because", "--by", "grace", "--json"))
	if f.Who != "grace" || f.Why != "because" || f.Forgotten.ID != "o-1" {
		t.Errorf("claims forget --json: %+v", f)
	}
}

func TestAnOrderNeedsToSayWho(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	wantAll(t, env.refuse(ExitUsage, "claims", "forget", "--queue", "q", "x", "--why", "because"), "--by NAME", "CLAIMQ_OPERATOR")
	env = newTestEnv(t, "USER=grace")
	if who, _, err := env.order(orderFlags{why: "because"}); err != nil || !strings.HasPrefix(who, "grace") {
		t.Errorf("the user of the environment gives %q, %v", who, err)
	}
}

func TestClaimsImportOfJSONLines(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	env.Stdin = strings.NewReader(`{"id":"a","tenant":"t"}` + "\n" + `{"id":"b","at":"2026-01-02T03:04:05Z"}` + "\n")
	report := decodeJSON[claimsimport.Report](t, env.mustRun("claims", "import", "--queue", "orders", "--json", "-"))
	if diff := cmp.Diff(claimsimport.Report{Lines: 2, New: 2}, report); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
	env.mustRun("claims", "show", "--queue", "orders", "--tenant", "t", "a")
	wantAll(t, env.mustRun("claims", "show", "--queue", "orders", "b"), "2026-01-02 03:04:05 UTC")
}

func TestClaimsImportNamesAWrongLine(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	list := writeFile(t, "done.json", `{"id":"a"}`+"\n"+`{"id":"b"}`+"\n"+`{"idd":"c"}`+"\n")
	wantAll(t, env.refuse(ExitFailed, "claims", "import", "--queue", "orders", list), "line 3", `did you mean "id"?`)
	env.refuse(ExitNothing, "claims", "show", "--queue", "orders", "a")

	said := env.refuse(ExitPartial, "claims", "import", "--queue", "orders", "--chunk", "2", list)
	wantAll(t, said, "line 3")
	wantAll(t, env.stdout.String(), "2 ids are claimed now", "all up to line 2 is done")
	env.mustRun("claims", "show", "--queue", "orders", "b")
}

func TestClaimsImportDoesNotMakeAQueueOfAMistypedName(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	list := writeFile(t, "done.txt", "o-1\n")
	wantAll(t, env.refuse(ExitNothing, "claims", "import", "--queue", "ordres", list), `did you mean "orders"?`, "--new-queue")
	env.mustRun("claims", "import", "--queue", "refunds", "--new-queue", list)
	env.mustRun("claims", "show", "--queue", "refunds", "o-1")
}

func TestClaimsRefusesAWrongCommandLine(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	for _, tt := range []struct {
		code int
		said string
		args []string
	}{
		{ExitUsage, "claims needs one of: show, stats, forget, import", []string{"claims"}},
		{ExitUsage, "--queue is missing", []string{"claims", "show", "x"}},
		{ExitUsage, "accepts 1 arg", []string{"claims", "show", "--queue", "orders"}},
		{ExitUsage, "no such file", []string{"claims", "import", "--queue", "orders", "no-such-file"}},
		{ExitUsage, "--format", []string{"claims", "import", "--queue", "orders", "--format", "csv", "-"}},
		{ExitUsage, "--chunk", []string{"claims", "import", "--queue", "orders", "--chunk", "0", "-"}},
		{ExitNothing, `did you mean "orders"?`, []string{"claims", "show", "--queue", "order", "x"}},
		{ExitNothing, `did you mean "orders"?`, []string{"claims", "forget", "--queue", "order", "x", "--why", "y"}},
	} {
		wantAll(t, env.refuse(tt.code, tt.args...), tt.said)
	}
}

func TestClaimsShowOfAQueueThatClaimsNothing(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	dbExec(t, db, `insert into claimq.queues (name, group_name, rule, config) values ('audit', 'audit', 'r', '{"claims": "none"}')`)
	wantAll(t, env.refuse(ExitNothing, "claims", "show", "--queue", "audit", "x"), "claims nothing")
}
