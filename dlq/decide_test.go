package dlq_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
)

func (w *world) decide(d dlq.Decision, s dlq.Selection) int64 {
	w.Helper()
	n, err := w.store.Decide(w.ctx(), w.db.Pool, d, s, ada, 0)
	w.must(err)
	return n
}

func TestDiscardCanBeUndoneAndEraseCannot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letters := w.dead(1200, nil) // several transactions
	all := dlq.Selection{Queue: w.queue}
	if n := w.decide(dlq.Discard, all); n != 1200 {
		t.Fatalf("%d were discarded, want 1200", n)
	}
	if n := get[int](w, `select count(*) from claimq.dead_letters where state = 'discarded' and settled_at is not null and decided_by = 'ada' and decided_why = 'a test'`); n != 1200 {
		t.Errorf("%d letters say who discarded them and why", n)
	}
	if n := w.decide(dlq.Restore, all); n != 1200 {
		t.Errorf("%d were restored, want 1200", n)
	}
	one := dlq.Selection{IDs: []uuid.UUID{letters[7].ID}}
	if n := w.decide(dlq.Erase, one); n != 1 {
		t.Errorf("%d were erased, want 1", n)
	}
	if n := w.decide(dlq.Restore, one) + w.decide(dlq.Discard, one); n != 0 {
		t.Error("an erased letter was decided about again")
	}
	found, err := w.store.Choose(w.ctx(), w.db.Pool, one, nil, 1)
	w.must(err)
	if l := found[0]; l.State != dlq.Erased || l.Record != nil || l.ErrorMessage != "" || l.Shown != "" || l.Reason != dlq.Exhausted || l.Attempts != 3 {
		t.Errorf("of an erased letter there is left: %+v", l)
	}
	if n := get[int](w, `select count(distinct l) from claimq.audit, jsonb_array_elements_text(detail->'letters') l where action = 'dlq discard' and who = 'ada'`); n != 1200 {
		t.Errorf("the audit tells of %d discarded letters, want 1200", n)
	}
	if _, err := w.store.Decide(w.ctx(), w.db.Pool, dlq.Discard, all, dlq.Operator{Who: "ada"}, 0); err == nil {
		t.Error("a decision without a reason was taken")
	}
}

func TestDiscardFreesTheKeyAndRestoreHoldsItAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := uuid.New()
	w.dead(1, func(_ int, l *dlq.Letter) { l.OrderKey, l.HoldsKey = key, true })
	w.exec(`insert into claimq.delayed (id, queue, kind, order_key, due_at, record_topic, record_at) values (gen_random_uuid(), $1, 'blocked', $2, now(), 'orders', now())`, w.queue, key)
	held := func() bool { return get[bool](w, `select ready_at = 'infinity' from claimq.delayed_keys`) }
	all := dlq.Selection{Queue: w.queue}
	if !held() {
		t.Fatal("the letter does not hold its key")
	}
	w.decide(dlq.Discard, all)
	if held() {
		t.Error("a discarded letter holds its key")
	}
	w.decide(dlq.Restore, all)
	if !held() {
		t.Error("a restored letter does not hold its key")
	}
}

func TestEachFieldOfASelectionChooses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant, value := "acme", "b"
	letters := w.dead(3, nil)
	special := w.letter()
	special.Reason, special.ErrorClass, special.Tenant, special.Shown, special.Attempts = dlq.Permanent, "special", &tenant, "4711", 7
	special.Record = &kgo.Record{
		Topic: "orders", Key: []byte{}, Value: []byte("x \x00 täxt y"), Timestamp: time.UnixMilli(1), Offset: special.Record.Offset,
		Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("a")}, {Key: "h", Value: []byte("b")}},
	}
	w.put(special)
	w.exec(`update claimq.dead_letters set died_at = '2026-01-02T00:00:00Z' where id = $1`, special.ID)
	at := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for name, s := range map[string]dlq.Selection{
		"reason": {Reason: dlq.Permanent}, "class": {Class: "special"}, "tenant": {Tenant: &tenant}, "letter": {IDs: []uuid.UUID{special.ID}},
		"id": {Shown: []string{"4711"}}, "empty key": {Key: []byte{}}, "time": {DiedFrom: at, DiedBefore: at.Add(time.Second)},
		"attempts": {MinAttempts: 4}, "header": {Header: "h"}, "header's second value": {Header: "h", HeaderValue: &value},
		"text": {Text: "täxt"}, "cause": {Cause: special.Cause}, "several": {Reason: dlq.Permanent, Queue: w.queue, Text: "y"},
	} {
		if s.Empty() {
			t.Errorf("%s: the selection says that it is empty", name)
		}
		found, err := w.store.Choose(w.ctx(), w.db.Pool, s, nil, 10)
		w.must(err)
		if len(found) != 1 || found[0].ID != special.ID {
			t.Errorf("%s chooses %d letters, want the special one", name, len(found))
		}
	}
	other := "c"
	for name, s := range map[string]dlq.Selection{
		"end of the interval": {DiedBefore: at}, "no letters": {IDs: []uuid.UUID{}}, "another header value": {Header: "h", HeaderValue: &other},
		"other text": {Text: "taxt"}, "too many attempts": {MinAttempts: 8},
	} {
		found, err := w.store.Choose(w.ctx(), w.db.Pool, s, nil, 10)
		w.must(err)
		if len(found) != 0 {
			t.Errorf("%s chooses %d letters, want none", name, len(found))
		}
	}
	if s := (dlq.Selection{States: []dlq.State{dlq.Dead}}); !s.Empty() {
		t.Error("a selection of nothing but a state is not empty")
	}
	first, err := w.store.Choose(w.ctx(), w.db.Pool, dlq.Selection{}, nil, 2)
	w.must(err)
	rest, err := w.store.Choose(w.ctx(), w.db.Pool, dlq.Selection{}, first[1], 10)
	w.must(err)
	if len(first) != 2 || len(rest) != 2 || rest[1].ID != letters[2].ID {
		t.Errorf("pages of %d and %d letters", len(first), len(rest))
	}
}

func TestCausesComeWithTheirCountsSamplesAndNotes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letters := w.dead(5, nil)
	w.dead(1, func(_ int, l *dlq.Letter) { l.Reason = dlq.Permanent })
	w.decide(dlq.Discard, dlq.Selection{IDs: []uuid.UUID{letters[0].ID}})
	for _, note := range []string{"ticket 7", "fixed in 1.2"} {
		if found, err := w.store.Note(w.ctx(), w.db.Pool, letters[0].Cause, "ada", note); err != nil || !found {
			t.Fatalf("note: %v, %v", found, err)
		}
	}
	if found, err := w.store.Note(w.ctx(), w.db.Pool, uuid.New(), "ada", "x"); err != nil || found {
		t.Errorf("a note on a cause that nothing has: %v, %v", found, err)
	}
	causes, err := w.store.Causes(w.ctx(), w.db.Pool, dlq.Selection{Queue: w.queue}, 0)
	w.must(err)
	if len(causes) != 2 {
		t.Fatalf("%d causes, want 2", len(causes))
	}
	c := causes[0]
	if c.Cause != letters[0].Cause || c.Letters != 5 || c.Dead != 4 || len(c.Samples) != 3 || c.Queue != "orders" || c.Message != "no stock for order 4" {
		t.Errorf("the first cause is %+v", c)
	}
	if diff := cmp.Diff([]string{"ada: ticket 7", "ada: fixed in 1.2"}, c.Notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestOnlyOlderLettersOfTheKeyAreOvertaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := uuid.New()
	letters := w.dead(3, func(i int, l *dlq.Letter) {
		if i < 2 {
			l.OrderKey = key
		}
	})
	w.commit(func(b *pgx.Batch) {
		w.store.Overtaken(b, w.queue, []uuid.UUID{key, letters[2].ID}, []int64{letters[1].OrderPos, 0})
	})
	overtaken := get[[]uuid.UUID](w, `select array_agg(id) from claimq.dead_letters where overtaken_at is not null`)
	if diff := cmp.Diff([]uuid.UUID{letters[0].ID}, overtaken); diff != "" {
		t.Errorf("overtaken (-want +got):\n%s", diff)
	}
}
