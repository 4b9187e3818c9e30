package consumer_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
)

// A batch with the same id several times, the first copy of which has each fate: the
// others fare as if each had come alone, after it.
func TestCopiesInOneBatchFareAsIfAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, second string // values: an equal one is a copy, another is a conflict
		onDead        consumer.OnDead
		effects       []string
		outcomes      map[string]int
	}{
		"the first works": {
			first: "works", second: "works", effects: []string{"before", "x", "after"},
			outcomes: map[string]int{"processed": 3, "duplicate": 1},
		},
		"the first works, the second differs": {
			first: "works", second: "works otherwise", effects: []string{"before", "x", "after"},
			outcomes: map[string]int{"processed": 3, "dead": 1},
		},
		"the first is skipped": {
			first: "skips", second: "skips", effects: []string{"before", "x", "after"},
			outcomes: map[string]int{"processed": 2, "skipped": 1, "duplicate": 1},
		},
		"the first is delayed": {
			first: "fails", second: "fails", effects: []string{"before"},
			outcomes: map[string]int{"processed": 1, "delayed": 1, "folded": 1, "blocked": 1},
		},
		"the first is delayed, the second differs": {
			first: "fails", second: "works", effects: []string{"before"},
			outcomes: map[string]int{"processed": 1, "delayed": 1, "dead": 1, "blocked": 1},
		},
		"the first dies, and so does the second": {
			first: "dies", second: "dies", effects: []string{"before", "after"},
			outcomes: map[string]int{"processed": 2, "dead": 2},
		},
		"the first dies, the second works and closes nothing of another": {
			first: "dies", second: "works", effects: []string{"before", "x", "after"},
			outcomes: map[string]int{"processed": 3, "dead": 1},
		},
		"the first dies and holds the rest": {
			first: "dies", second: "works", onDead: consumer.Block, effects: []string{"before"},
			outcomes: map[string]int{"processed": 1, "dead": 1, "blocked": 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Handler, c.Retry, c.Concurrency, c.OnDead = r.kinds()["one"], never, 1, test.onDead
			c.Batch.Wait = 300 * time.Millisecond
			r.produce(
				message(0, "before", "k", "works"),
				message(0, "x", "k", test.first), message(0, "x", "k", test.second),
				message(0, "after", "k", "works"),
			)
			r.start(c)
			r.outcomes(test.outcomes)
			if diff := cmp.Diff(test.effects, r.ids()); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
			eventually(t, "position is at the end", func() bool { return r.position(0) == 4 })
		})
	}
}

// A batch may hold nothing but copies, and many ids with copies among failures.
func TestRepeatsAmongFailures(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Handler, c.Retry, c.Concurrency = r.kinds()["batch that does not"], never, 1
	c.Batch.Wait = 300 * time.Millisecond
	var records []*kgo.Record
	var want []string
	for i := range 60 {
		id, value := "m"+strconv.Itoa(i), "works"
		if i%10 == 4 {
			value = "fails"
		} else {
			want = append(want, id)
		}
		for range 3 {
			records = append(records, message(0, id, "", value))
		}
	}
	r.produce(records...)
	r.start(c)
	r.outcomes(map[string]int{"processed": 54, "duplicate": 108, "delayed": 6, "folded": 12})
	r.once(want...)
}

// A copy of a message that is dead runs, and settles its letter when it works.
func TestARepeatOfADeadIDRunsAndSettlesTheLetter(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry = never
	works := make(chan struct{})
	c.Handler = r.when(works)
	r.produce(message(0, "a", "a", "dies"))
	r.start(c)
	r.outcomes(map[string]int{"dead": 1})
	r.produce(message(0, "a", "a", "dies"))
	r.outcomes(map[string]int{"dead": 2})
	close(works)
	r.produce(message(0, "a", "a", "dies"))
	r.outcomes(map[string]int{"processed": 1})
	if n := r.count(`select count(*) from %s.dead_letters where state = 'resolved'`); n != 2 {
		t.Errorf("%d letters are resolved, want 2", n)
	}
	r.produce(message(0, "a", "a", "dies"))
	r.outcomes(map[string]int{"duplicate": 1})
	r.once("a")
}

// A repeat of an id that waits in the delay queue is folded into that item.
func TestARepeatOfAWaitingIDIsFolded(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry = never
	c.Handler = r.kinds()["one"]
	r.produce(message(0, "a", "", "fails"))
	r.start(c)
	r.outcomes(map[string]int{"delayed": 1})
	r.produce(message(0, "a", "", "fails"))
	r.outcomes(map[string]int{"folded": 1})
	r.produce(message(0, "a", "", "fails in another way"))
	r.outcomes(map[string]int{"dead": 1})
	if n := r.count(`select count(*) from %s.delayed`); n != 1 {
		t.Errorf("%d items, want 1", n)
	}
	if n := r.count(`select count(*) from %s.dead_letters where reason = 'conflict'`); n != 1 {
		t.Errorf("%d letters of reason conflict, want 1", n)
	}
	if n := r.count(`select count(*) from %s.claims`); n != 0 {
		t.Errorf("%d claims, want none", n)
	}
}
