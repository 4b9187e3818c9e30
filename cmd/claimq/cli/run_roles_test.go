package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgtest"
)

// login makes the roles and somebody who has one of them, and returns the address
// to connect with. The roles go with the test.
func login(t *testing.T, db *pgtest.DB, group string) (dsn string) {
	t.Helper()
	env := newTestEnv(t)
	role := db.Schema + "_login"
	script := env.mustRun("migrate", "roles", "--schema", db.Schema) +
		fmt.Sprintf("create role %s login password '%s' in role %s_%s", role, topSecret, db.Schema, group)
	if _, err := db.Pool.Exec(t.Context(), script); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, name := range []string{role, db.Schema + "_owner", db.Schema + "_worker", db.Schema + "_operator", db.Schema + "_reader"} {
			if _, err := db.Pool.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf("drop owned by %[1]s cascade; drop role %[1]s", name)); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
	})
	address, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(role, topSecret)
	return address.String()
}

// Everything that a worker does, with a worker's rights only: claims, failures,
// the delay queue, dead letters, the outbox.
func TestAWorkersRightsAreEnoughToRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	dsn := login(t, db, "worker")
	// The roles' script has made all tables of the schema the owner's; the sink is the business's.
	if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf("grant insert on %s to %s_worker", table, db.Schema)); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool.Exec(t.Context(), fmt.Sprintf("alter table %s add check (id <> 'poison')", table)); err != nil {
		t.Fatal(err)
	}
	kafka := startKafka(t, "a", "a.dead")
	queue := queueYAML("first", table, "a") + "    dead_letter_topic: a.dead\n    retry: {max_attempts: 2, initial_delay: 50ms, jitter: 0}\n"
	p := start(t, newTestEnv(t), "-c", runFile(t, dsn, db.Schema, kafka.ListenAddrs(), queue))
	p.waitReady()
	produce(t, kafka.ListenAddrs(), "a", "1", "poison", "2", "1")
	eventually(t, "the rows", func() bool { return count(t, db, "select count(*) from "+table) == 2 })
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.ConsumeTopics("a.dead"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	records := client.PollFetches(ctx).Records()
	if len(records) != 1 || string(records[0].Key) != "poison" {
		t.Fatalf("dead letters: %v", records)
	}
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
	if log := p.stderr.String(); strings.Contains(log, "42501") || strings.Contains(log, "permission denied") {
		t.Errorf("a right is missing:\n%s", log)
	}
}

func TestAReadersRightsAreNotEnoughToRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	dsn := login(t, db, "reader")
	kafka := startKafka(t, "a")
	got := runOnce(t, newTestEnv(t), ExitFailed, "-c", runFile(t, dsn, db.Schema, kafka.ListenAddrs(), queueYAML("first", table, "a")))
	wantAll(t, got, `register queue "first"`, "permission denied for table queues")
}

// A right that is taken away while it runs stops the work and no message: it is
// shown, and when the right is back the work goes on.
func TestReadinessTellsOfADatabaseThatRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	dsn := login(t, db, "worker")
	claims := func(command string) {
		t.Helper()
		if _, err := db.Pool.Exec(t.Context(), strings.NewReplacer("TABLE", db.Schema+".claims_0", "SINK", table, "ROLE", db.Schema+"_worker").Replace(command)); err != nil {
			t.Fatal(err)
		}
	}
	claims("grant insert on SINK to ROLE")
	kafka := startKafka(t, "a")
	p := start(t, newTestEnv(t), "-c", runFile(t, dsn, db.Schema, kafka.ListenAddrs(), queueYAML("first", table, "a")))
	p.waitReady()
	claims("revoke insert on TABLE from ROLE")
	produce(t, kafka.ListenAddrs(), "a", "1")
	eventually(t, "it is told", func() bool {
		status, body := p.get("/readyz")
		return status == 503 && strings.Contains(body, `"queue":"first"`) && strings.Contains(body, "permission denied for table claims_0")
	})
	claims("grant insert on TABLE to ROLE")
	eventually(t, "the row", func() bool { return count(t, db, "select count(*) from "+table) == 1 })
	p.waitReady()
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}
