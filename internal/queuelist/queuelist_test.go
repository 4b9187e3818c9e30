package queuelist_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/queuelist"
)

func execute(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), pgschema.Schema(db.Schema).SQL(sql)); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func find(t *testing.T, db *pgtest.DB, name string) queuelist.Queue {
	t.Helper()
	queue, err := queuelist.Find(t.Context(), db.Pool, pgschema.Schema(db.Schema), name)
	if err != nil {
		t.Fatalf("Find(%q): %v", name, err)
	}
	return queue
}

func TestAllTellsWhatIsRegistered(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	execute(t, db, `insert into claimq.queues (name, group_name, rule, config, retention) values
		('refunds', 'refunds', '', '{}', '8 days'),
		('orders', 'orders-group', 'id(key)', '{"claims": "id"}', '3 days'),
		('audit', 'audit', 'id()', '{"claims": "none"}', '1 day 12 hours')`)
	all, err := queuelist.All(t.Context(), db.Pool, pgschema.Schema(db.Schema))
	if err != nil {
		t.Fatalf("All: %v", err)
	}
	for i := range all {
		all[i].Number, all[i].RememberedSince = 0, time.Time{}
	}
	want := []queuelist.Queue{
		{Name: "audit", Group: "audit", Registered: true, ClaimsNothing: true, Retention: 36 * time.Hour},
		{Name: "orders", Group: "orders-group", Registered: true, Retention: 72 * time.Hour},
		{Name: "refunds", Group: "refunds", Retention: 192 * time.Hour},
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("the queues (-want +got):\n%s", diff)
	}
}

func TestFindNamesTheNearest(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schema := pgschema.Schema(db.Schema)
	_, err := queuelist.Find(t.Context(), db.Pool, schema, "orders")
	var unknown *queuelist.UnknownError
	if !errors.As(err, &unknown) || len(unknown.Known) != 0 {
		t.Fatalf("Find in an empty schema: %v, want an UnknownError without names", err)
	}
	execute(t, db, `insert into claimq.queues (name, group_name, rule) values ('payments', 'g', 'r'), ('orders', 'g', 'r')`)
	_, err = queuelist.Find(t.Context(), db.Pool, schema, "ordres")
	if !errors.As(err, &unknown) || !strings.Contains(err.Error(), `did you mean "orders"?`) {
		t.Errorf("Find(ordres): %v, want the nearest name", err)
	}
	if got := find(t, db, "payments"); got.Name != "payments" || got.Number == 0 {
		t.Errorf("Find(payments) = %+v", got)
	}
}

// The latest of three: when the queue was made, what its retention reaches, when
// the oldest segment in use was opened.
func TestRememberedSince(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	execute(t, db, `insert into claimq.queues (name, group_name, rule, retention, created_at) values
		('young', 'g', 'r', '8 days', now() - interval '1 hour'),
		('short', 'g', 'r', '2 days', now() - interval '30 days'),
		('long', 'g', 'r', '20 days', now() - interval '30 days')`)
	// Segment 3 is older and no longer in use.
	execute(t, db, `insert into claimq.claim_phases (phase, inserts, lookups) values (7, '{1,2}', '{0}')`)
	execute(t, db, `update claimq.claim_segments set opened = now() - case segment when 0 then interval '5 days' when 3 then interval '9 days' else interval '1 minute' end`)
	for name, want := range map[string]time.Duration{"young": time.Hour, "short": 48 * time.Hour, "long": 120 * time.Hour} {
		got := time.Since(find(t, db, name).RememberedSince)
		if diff := (got - want).Abs(); diff > time.Minute {
			t.Errorf("queue %s remembers since %s ago, want %s", name, got.Round(time.Second), want)
		}
	}
}
