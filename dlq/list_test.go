package dlq_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/claimq/claimq/dlq"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := get[int32](w, `insert into claimq.queues (name, group_name, rule) values ('b', 'b', 'r') returning id`)
	var letters []*dlq.Letter
	for i := range 6 {
		l := w.letter()
		if i%2 == 1 {
			l.Reason = dlq.Conflict
		}
		if i >= 4 {
			l.Queue, l.QueueName = other, "b"
		}
		letters = append(letters, l)
	}
	w.put(letters...)
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	for i, l := range letters {
		w.exec(`update claimq.dead_letters set died_at = $1 where id = $2`, day(i+1), l.ID)
	}
	w.exec(`update claimq.dead_letters set state = 'discarded', settled_at = now() where id = $1`, letters[0].ID)
	for name, c := range map[string]struct {
		filter dlq.Filter
		want   []int
	}{
		"all":                  {dlq.Filter{}, []int{0, 1, 2, 3, 4, 5}},
		"one queue":            {dlq.Filter{Queue: w.queue}, []int{0, 1, 2, 3}},
		"open":                 {dlq.Filter{States: []dlq.State{dlq.Dead, dlq.Replaying}}, []int{1, 2, 3, 4, 5}},
		"discarded":            {dlq.Filter{States: []dlq.State{dlq.Discarded}}, []int{0}},
		"a reason":             {dlq.Filter{Reason: dlq.Conflict}, []int{1, 3, 5}},
		"a cause":              {dlq.Filter{Cause: letters[0].Cause}, []int{0, 2}},
		"a half-open interval": {dlq.Filter{DiedFrom: day(2), DiedBefore: day(4)}, []int{1, 2}},
		"several":              {dlq.Filter{Queue: other, Reason: dlq.Conflict}, []int{5}},
		"nothing":              {dlq.Filter{Cause: uuid.New()}, nil},
	} {
		var got []int
		for _, l := range w.list(c.filter) {
			for i := range letters {
				if letters[i].ID == l.ID {
					got = append(got, i)
				}
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		n, err := w.store.Count(w.ctx(), w.db.Pool, c.filter)
		w.must(err)
		if int(n) != len(c.want) {
			t.Errorf("%s: counted %d, want %d", name, n, len(c.want))
		}
		reasons, err := w.store.ByReason(w.ctx(), w.db.Pool, c.filter)
		w.must(err)
		sum := 0
		for _, r := range reasons {
			sum += int(r.Letters)
		}
		if sum != len(c.want) {
			t.Errorf("%s: by reason %d, want %d", name, sum, len(c.want))
		}
	}
	reasons, err := w.store.ByReason(w.ctx(), w.db.Pool, dlq.Filter{Queue: w.queue, States: []dlq.State{dlq.Dead}})
	w.must(err)
	want := []dlq.ReasonCount{
		{Reason: dlq.Conflict, Letters: 2, First: day(2), Last: day(4)},
		{Reason: dlq.Exhausted, Letters: 1, First: day(3), Last: day(3)},
	}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Errorf("by reason (-want +got):\n%s", diff)
	}
}

// Pages follow one another without a gap or a repeat, also among letters that died
// in the same instant.
func TestListPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var letters []*dlq.Letter
	for range 25 {
		letters = append(letters, w.letter())
	}
	w.put(letters...)
	w.exec(`update claimq.dead_letters set died_at = '2026-01-01'`)
	seen := map[uuid.UUID]bool{}
	var after *dlq.Letter
	for {
		page := w.list(dlq.Filter{After: after, Limit: 7})
		if len(page) == 0 {
			break
		}
		for _, l := range page {
			if seen[l.ID] {
				t.Fatalf("letter %v is on two pages", l.ID)
			}
			seen[l.ID] = true
		}
		after = page[len(page)-1]
	}
	if len(seen) != len(letters) {
		t.Fatalf("%d letters of %d", len(seen), len(letters))
	}
}

// An erased letter keeps its account and shows no record.
func TestErasedLetterHasNoRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.letter()
	w.put(l)
	w.exec(`update claimq.dead_letters set state = 'erased', settled_at = now(), record_key = null, record_value = null`)
	got := w.list(dlq.Filter{})[0]
	if got.Record != nil || got.Source == nil || got.Source.Offset != l.Source.Offset || got.SettledAt.IsZero() {
		t.Fatalf("%+v", got)
	}
}
