package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/outbox"
)

// addEffects commits records and returns their ids.
func addEffects(t *testing.T, db *pgtest.DB, topic, key string, values ...string) (ids []string) {
	t.Helper()
	box, err := outbox.New(outbox.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range values {
		effect := outbox.Effect{ID: uuid.New(), Topic: topic, Key: []byte(key), Value: []byte(value)}
		if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return box.Add(t.Context(), tx, effect) }); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, effect.ID.String())
	}
	return ids
}

// hold sets records aside, as a relay does whose topic refuses the first.
func hold(t *testing.T, db *pgtest.DB, topic, key string, n int) (ids []string) {
	t.Helper()
	for i := range n {
		id, scope := uuid.New(), "key"
		if i == 0 {
			scope = "row"
		}
		dbExec(t, db, `insert into claimq.outbox_held (seq, bucket, ordered, id, topic, key, value, header_keys, header_values,
			created_at, scope, reason, attempts, next_at)
			values (nextval('claimq.outbox_seq'), claimq.outbox_bucket($3, $1), true, $1, $2, $3, '\x00', '{}', '{}', now(), $4::text::claimq.held_scope, 'too large', 1, now() + interval '1 hour')`,
			id, topic, []byte(key), scope)
		ids = append(ids, id.String())
	}
	return ids
}

func TestOutboxListShowsWhatIsHeld(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	wantAll(t, env.refuse(ExitNothing, "outbox", "list")+env.stdout.String(), "Nothing is held")
	ids := hold(t, db, "shipments", "k-7", 2)
	other := hold(t, db, "other", "k", 1)
	shown := env.mustRun("outbox", "list")
	wantAll(t, shown, ids[0], ids[1], other[0], "too large", "shipments")
	if strings.Contains(shown, "k-7") {
		t.Errorf("the key is shown without --keys:\n%s", shown)
	}
	wantAll(t, env.mustRun("outbox", "list", "--keys"), "k-7")
	wantAll(t, env.mustRun("outbox", "list", "--limit", "1"), ids[0], "--after 1")
	list := decodeJSON[[]heldView](t, env.mustRun("outbox", "list", "--after", "1", "--topic", "shipments", "--json"))
	if len(list) != 1 || list[0].ID.String() != ids[1] || list[0].Scope != "key" || list[0].Key != nil {
		t.Errorf("the second page of shipments is %+v, want the record %s without its key", list, ids[1])
	}
	env.refuse(ExitUsage, "outbox", "list", "--limit", "0")
	if text := env.refuse(ExitNothing, "outbox", "list", "--topic", "none", "--json") + env.stdout.String(); text != "[]\n" {
		t.Errorf("nothing as JSON is %q", text)
	}
}

func TestOutboxStatus(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	wantAll(t, env.mustRun("outbox", "status"), "outbox: empty", "No relay has run yet")
	addEffects(t, db, "shipments", "k", "1", "2")
	hold(t, db, "refused", "k", 3)
	wantAll(t, env.mustRun("outbox", "status"), "2 to publish", "3 held", "refused", "too large")
	report := decodeJSON[outboxReport](t, env.mustRun("outbox", "status", "--json"))
	if report.Waiting != 2 || report.Held != 3 || len(report.Topics) != 1 || report.Topics[0].Refused != 1 || report.Topics[0].Behind != 2 {
		t.Errorf("status --json: %+v", report)
	}
}

func TestOutboxRetryAndDiscard(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	ids := hold(t, db, "shipments", "k", 3)
	due := func() string {
		var scopes string
		if err := db.Pool.QueryRow(t.Context(), "select coalesce(string_agg(scope::text || case when next_at <= clock_timestamp() then ' due' else '' end, ', ' order by seq), '') from "+
			db.Schema+".outbox_held").Scan(&scopes); err != nil {
			t.Fatal(err)
		}
		return scopes
	}
	for _, args := range [][]string{
		{"retry"},
		{"discard"},
		{"retry", "--all"},
		{"retry", ids[0], "--topic", "shipments", "--why", "x"},
		{"discard", "no-uuid", "--why", "x"},
		{"discard", "--all", "--why", "x"},
	} {
		env.refuse(ExitUsage, append([]string{"outbox"}, args...)...)
	}
	for _, command := range []string{"retry", "discard"} {
		wantAll(t, env.refuse(ExitNothing, "outbox", command, uuid.NewString(), "--why", "x"), "nothing of that is held")
	}
	if got := due(); got != "row, key, key" {
		t.Fatalf("commands that were refused have changed what is held: %s", got)
	}
	wantAll(t, env.mustRun("outbox", "retry", ids[1], "--why", "raised the limit"), "1 record is due now, by ada")
	if got := due(); got != "row due, key, key" {
		t.Errorf("after retry: %s", got)
	}
	if got := decodeJSON[retried](t, env.mustRun("outbox", "retry", "--all", "--why", "x", "--by", "bob", "--json")); got != (retried{Records: 3, Who: "bob", Why: "x"}) {
		t.Errorf("retry --json: %+v", got)
	}
	wantAll(t, env.mustRun("outbox", "discard", ids[0], "--why", "INC-12"), ids[0], "1 record is discarded, by ada")
	if got := due(); got != "row due, key" {
		t.Errorf("after discard: %s", got)
	}
	gone := decodeJSON[discarded](t, env.mustRun("outbox", "discard", "--topic", "shipments", "--why", "INC-12", "--json"))
	if len(gone.Discarded) != 2 || gone.Discarded[1].ID.String() != ids[2] {
		t.Errorf("discard --json: %+v", gone)
	}
	if got := due(); got != "" {
		t.Errorf("still held: %s", got)
	}
	if n := count(t, db, "select count(*) from "+db.Schema+".audit where action in ('outbox retry', 'outbox discard') and why <> ''"); n != 4 {
		t.Errorf("%d orders are audited, want 4", n)
	}
}

// An operator may settle, and a reader may look at all but keys.
func TestOutboxCommandsNeedNoMoreThanTheirRole(t *testing.T) {
	t.Parallel()
	for role, allowed := range map[string][][]string{
		"operator": {
			{"outbox", "status"},
			{"outbox", "list", "--keys"},
			{"outbox", "retry", "--all", "--why", "x"},
			{"outbox", "discard", "--topic", "shipments", "--why", "x"},
		},
		"reader": {{"outbox", "status"}, {"outbox", "list"}},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			hold(t, db, "shipments", "k", 2)
			env := newTestEnv(t, "CLAIMQ_DSN="+login(t, db, role), "CLAIMQ_SCHEMA="+db.Schema, "CLAIMQ_OPERATOR=ada")
			for _, args := range allowed {
				env.mustRun(args...)
			}
			if role == "reader" {
				env.refuse(ExitFailed, "outbox", "list", "--keys")
				env.refuse(ExitFailed, "outbox", "discard", "--topic", "shipments", "--why", "x")
			}
		})
	}
}

// The relay in a process of its own: a worker's rights, no queues, a configuration
// that switches the relay of `claimq run` off.
func TestRelayPublishesWithoutQueuesAndStopsOnASignal(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	kafka := startKafka(t, "shipments")
	dsn := login(t, db, "worker")
	file := writeFile(t, "claimq.yaml", fmt.Sprintf(
		"database: {dsn: %q, schema: %s}\nkafka: {brokers: [%s]}\nhttp: {listen: 127.0.0.1:0}\nrelay: {enabled: false, slices: 2}\n",
		dsn, db.Schema, strings.Join(kafka.ListenAddrs(), ",")))
	first := addEffects(t, db, "shipments", "k", "before")
	p := startCommand(t, newTestEnv(t), "relay", "-c", file)
	p.waitReady()
	second := addEffects(t, db, "shipments", "k", "after")
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.ConsumeTopics("shipments"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var got []string
	for len(got) < 2 {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { got = append(got, string(r.Headers[0].Value)+" "+string(r.Value)) })
	}
	if diff := cmp.Diff([]string{first[0] + " before", second[0] + " after"}, got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	eventually(t, "the figures tell of both", func() bool {
		_, metrics := p.get("/metrics")
		return strings.Contains(metrics, "claimq_relay_published_total 2") && strings.Contains(metrics, "claimq_relay_leased_slices 2")
	})
	env := newTestEnv(t, "CLAIMQ_DSN="+db.DSN, "CLAIMQ_SCHEMA="+db.Schema)
	var report outboxReport
	if err := json.Unmarshal([]byte(env.mustRun("outbox", "status", "--json")), &report); err != nil || len(report.Slices) != 2 || !report.Slices[0].Leased {
		t.Errorf("slices %+v, %v, want two with a lease", report.Slices, err)
	}
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	wantAll(t, p.stderr.String(), "claimq has stopped")
	if err := json.Unmarshal([]byte(env.mustRun("outbox", "status", "--json")), &report); err != nil || report.Slices[0].Leased {
		t.Errorf("after a stop the lease goes on: %+v, %v", report.Slices, err)
	}
}

// What an operator does in the end: the topic comes, retry, and the records are out
// long before their delay ends.
func TestRetryMovesWhatARunningRelayHolds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	kafka := startKafka(t, "there")
	file := runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), "  {}\n")
	p := startCommand(t, newTestEnv(t), "relay", "-c", file)
	p.waitReady()
	addEffects(t, db, "late", "k", "1", "2")
	eventually(t, "both are held", func() bool { return count(t, db, "select count(*) from "+db.Schema+".outbox_held") == 2 })
	dbExec(t, db, "update claimq.outbox_held set next_at = now() + interval '1 hour'")
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, "late"); err != nil {
		t.Fatal(err)
	}
	env := newTestEnv(t, "CLAIMQ_OPERATOR=ada")
	began := time.Now()
	env.mustRun("outbox", "retry", "-c", file, "--topic", "late", "--why", "the topic is there now")
	eventually(t, "nothing is held", func() bool { return count(t, db, "select count(*) from "+db.Schema+".outbox_held") == 0 })
	if waited := time.Since(began); waited > 30*time.Second {
		t.Errorf("it took %s", waited)
	}
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}
