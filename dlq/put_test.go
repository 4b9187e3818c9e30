package dlq_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
)

func TestEveryColumnOfALetterComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant, empty := "tenant", ""
	full := w.letter()
	full.ErrorClass, full.ErrorMessage, full.Stack = "class", "message", "goroutine 1\n\tmain.go:7"
	full.Crashes, full.Interrupted, full.InterruptedWhy, full.Starts = 2, 1, "shutdown", 6
	full.OrderKey, full.OrderPos, full.HoldsKey = uuid.New(), 4711, true
	full.Fingerprint, full.FingerprintVersion = uuid.New(), 2
	full.Tenant, full.Operation, full.Shown = &tenant, &empty, "order-7"
	full.FirstSeen = time.Date(2020, 2, 29, 1, 2, 3, 4000, time.UTC)
	full.ReplayCount = 2
	full.Record.Headers = []kgo.RecordHeader{{Key: "h", Value: nil}, {Key: "h", Value: []byte{}}}
	bare := &dlq.Letter{Queue: w.queue, QueueName: "orders", Reason: "of the queue's own", Record: &kgo.Record{Topic: "orders", LeaderEpoch: -1}}
	w.put(full, bare)

	got := w.list(dlq.Filter{})
	if len(got) != 2 {
		t.Fatalf("%d letters, want 2", len(got))
	}
	same := cmp.Options{sameRecord, cmpopts.IgnoreFields(dlq.Letter{}, "DiedAt", "FirstSeen")}
	for _, l := range got {
		want := full
		if l.ID == bare.ID {
			want = bare
		}
		if diff := cmp.Diff(want, l, same); diff != "" {
			t.Errorf("letter (-put +listed):\n%s", diff)
		}
		if since := time.Since(l.DiedAt); since < -time.Minute || since > time.Minute || !l.DiedAt.Equal(want.DiedAt) {
			t.Errorf("died at %v, Put said %v", l.DiedAt, want.DiedAt)
		}
	}
	if full.Round != 3 || bare.Round != 1 {
		t.Errorf("rounds %d and %d, want one more than the replays: 3 and 1", full.Round, bare.Round)
	}
	if bare.OrderPos == 0 {
		t.Error("a letter that was never delayed has no order position to come back to")
	}
}

// vectors are bytes that Postgres stores as no text (CASES C15).
var vectors = []string{"", "\x00", "\xC3\x28", `{"a":"\u0000"}`, `"\ud800"`, "\xED\xA0\x80", "\xFF\xFE", `\x41`}

func TestEveryByteOfALetterComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var letters []*dlq.Letter
	for _, k := range vectors {
		for _, v := range vectors {
			l := w.letter()
			l.Record.Key, l.Record.Value = []byte(k), []byte(v)
			l.Record.Headers = []kgo.RecordHeader{{Key: k, Value: []byte(v)}, {Key: k, Value: nil}, {Key: v, Value: []byte{}}}
			l.ErrorClass, l.ErrorMessage, l.Stack, l.Shown, l.InterruptedWhy = k, v, k+v, v, k
			letters = append(letters, l)
		}
	}
	keyless, valueless := w.letter(), w.letter()
	keyless.Record.Key, valueless.Record.Value = nil, nil
	letters = append(letters, keyless, valueless)
	w.put(letters...)
	byID := map[uuid.UUID]*dlq.Letter{}
	for _, l := range w.list(dlq.Filter{Limit: 1000}) {
		byID[l.ID] = l
	}
	for _, l := range letters {
		if diff := cmp.Diff(l.Record, byID[l.ID].Record, sameRecord); diff != "" {
			t.Errorf("the record changed (-put +listed):\n%s", diff)
		}
	}
	if got := byID[letters[1].ID].ErrorMessage; got != `\x00` {
		t.Errorf("an error text of one NUL is kept as %q", got)
	}
}

func TestDiagnosticsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.letter()
	long := strings.Repeat("x", 1<<20)
	l.ErrorClass, l.ErrorMessage, l.Stack = long, long, long
	w.put(l)
	size := get[int](w, `select octet_length(error_class) + octet_length(error_message) + octet_length(stack) from claimq.dead_letters`)
	if size > 32<<10 {
		t.Fatalf("diagnostics have %d bytes", size)
	}
	if got := w.list(dlq.Filter{})[0].ErrorMessage; !strings.Contains(got, "truncated") {
		t.Fatalf("a cut message does not say so: …%q", got[len(got)-30:])
	}
}

// The batch is run again after an unknown COMMIT: one letter, one round.
func TestPutAgainIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.letter()
	again := *first
	w.put(first)
	before := get[string](w, `select string_agg(l::text, '|') from claimq.dead_letters l`)
	other := w.letter()
	twin := *other
	w.put(&again, other, &twin)
	if !again.Known || first.Known || other.Known || !twin.Known {
		t.Errorf("known: first %v, again %v, other %v, twin %v", first.Known, again.Known, other.Known, twin.Known)
	}
	if again.ID != first.ID {
		t.Errorf("one source has the ids %v and %v", first.ID, again.ID)
	}
	if after := get[string](w, `select string_agg(l::text, '|') from claimq.dead_letters l where id = $1`, first.ID); after != before {
		t.Errorf("the letter was changed:\n%s\n%s", before, after)
	}
	one, err := first.Feed("dead", dlq.FeedOptions{})
	w.must(err)
	two, err := again.Feed("dead", dlq.FeedOptions{})
	w.must(err)
	if one.EffectID != two.EffectID {
		t.Error("the same death is published under two effect ids")
	}
}

// A replay that dies again is the same letter's next round.
func TestSecondDeathIsTheNextRound(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]func(*dlq.Letter) uuid.UUID{
		"found by its source": func(*dlq.Letter) uuid.UUID { return uuid.New() },
		"found by its id":     func(l *dlq.Letter) uuid.UUID { return l.ID },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := w.letter()
			if strings.HasSuffix(name, "id") {
				l.Source = nil
			}
			w.put(l)
			effects := map[uuid.UUID]bool{}
			for round := 2; round <= 4; round++ {
				w.exec(`update claimq.dead_letters set state = 'replaying', replay_count = replay_count + 1`)
				death := *l
				death.ID, death.Round, death.ReplayCount = id(l), 0, round-1
				death.Reason, death.ErrorMessage, death.Attempts = dlq.Permanent, "gone for good", 1
				w.put(&death)
				if death.Known || death.Round != round {
					t.Fatalf("death %d: known %v, round %d", round, death.Known, death.Round)
				}
				repeat := death
				w.put(&repeat)
				if !repeat.Known {
					t.Fatalf("death %d was written twice", round)
				}
				feed, err := death.Feed("dead", dlq.FeedOptions{})
				w.must(err)
				effects[feed.EffectID] = true
			}
			got := w.list(dlq.Filter{})
			if len(got) != 1 || got[0].Round != 4 || got[0].State != dlq.Dead || got[0].Reason != dlq.Permanent || got[0].Attempts != 1 {
				t.Fatalf("%d letters, the first %+v; want one, dead for the fourth time", len(got), got[0])
			}
			if got[0].OrderPos != l.OrderPos || got[0].FirstSeen.IsZero() {
				t.Fatalf("order position %d became %d", l.OrderPos, got[0].OrderPos)
			}
			if len(effects) != 3 {
				t.Fatalf("%d effect ids for three deaths", len(effects))
			}
		})
	}
}

// A round number that somebody got wrong does not leave a letter replaying that
// has no item any more.
func TestSecondDeathWithTheFirstsRound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.letter()
	w.put(l)
	w.exec(`update claimq.dead_letters set state = 'replaying'`)
	death := *l
	death.Round = 1
	w.put(&death)
	if got := w.list(dlq.Filter{})[0]; got.State != dlq.Dead || got.Round != 2 || death.Round != 2 {
		t.Fatalf("state %s, round %d, told %d", got.State, got.Round, death.Round)
	}
}

// Whatever an operator decided about a letter stays decided.
func TestDeathOfASettledLetterIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, state := range []string{"resolved", "discarded", "erased"} {
		l := w.letter()
		w.put(l)
		w.exec(`update claimq.dead_letters set state = $1::text::claimq.letter_state, settled_at = now() where id = $2`, state, l.ID)
		again := *l
		w.put(&again)
		if got := get[string](w, `select state::text from claimq.dead_letters where id = $1`, l.ID); got != state || !again.Known {
			t.Errorf("a %s letter is %s after its record was read again (known: %v)", state, got, again.Known)
		}
	}
}

// Two workers write one source's letter at once, as an old backend and a repeat
// of its batch do: one row, and the second knows.
func TestTwoWritersOfOneSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.letter()
	copies := make([]*dlq.Letter, 8)
	var group sync.WaitGroup
	errs := make([]error, len(copies))
	for i := range copies {
		one := *l
		one.ID = uuid.New()
		copies[i] = &one
		group.Go(func() {
			errs[i] = pgx.BeginFunc(w.ctx(), w.db.Pool, func(tx pgx.Tx) error {
				var b pgx.Batch
				w.store.Put(&b, []*dlq.Letter{copies[i]})
				return tx.SendBatch(w.ctx(), &b).Close()
			})
		})
	}
	group.Wait()
	written := 0
	for i, one := range copies {
		w.must(errs[i])
		if !one.Known {
			written++
		}
	}
	if n := get[int](w, `select count(*) from claimq.dead_letters`); n != 1 || written != 1 {
		t.Fatalf("%d rows, %d writers think that they wrote", n, written)
	}
}

func TestPutAndResolveNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b pgx.Batch
	w.store.Put(&b, nil)
	w.store.Resolve(&b, nil)
	if b.Len() != 0 {
		t.Fatalf("%d statements were queued for nothing", b.Len())
	}
}

func TestResolveClosesOpenLettersOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letters := map[string]*dlq.Letter{}
	var all []uuid.UUID
	for _, state := range []string{"dead", "replaying", "resolved", "discarded", "erased"} {
		l := w.letter()
		w.put(l)
		letters[state] = l
		all = append(all, l.ID)
		w.exec(`update claimq.dead_letters set state = $1::text::claimq.letter_state,
		               settled_at = case when $1 in ('dead', 'replaying') then null else timestamptz '2020-01-01' end where id = $2`, state, l.ID)
	}
	w.commit(func(b *pgx.Batch) { w.store.Resolve(b, append(all, uuid.New())) })
	for state, want := range map[string]string{"dead": "resolved", "replaying": "resolved", "resolved": "resolved", "discarded": "discarded", "erased": "erased"} {
		if got := get[string](w, `select state::text from claimq.dead_letters where id = $1`, letters[state].ID); got != want {
			t.Errorf("a %s letter is %s, want %s", state, got, want)
		}
		open := state == "dead" || state == "replaying"
		if now := get[bool](w, `select settled_at > '2021-01-01' from claimq.dead_letters where id = $1`, letters[state].ID); now != open {
			t.Errorf("a %s letter was settled just now: %v", state, now)
		}
	}
}

// Resolving frees the keys that letters held, of several queues at once.
func TestResolveFreesHeldKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := get[int32](w, `insert into claimq.queues (name, group_name, rule) values ('b', 'b', 'r') returning id`)
	a, b, free := w.letter(), w.letter(), w.letter()
	a.HoldsKey, b.HoldsKey, b.Queue = true, true, other
	a.OrderKey = uuid.New()
	b.OrderKey, free.OrderKey = a.OrderKey, uuid.New()
	w.put(a, b, free)
	held := func() int { return get[int](w, `select count(*) from claimq.delayed_keys where ready_at = 'infinity'`) }
	if n := held(); n != 2 {
		t.Fatalf("%d held keys, want one in each queue", n)
	}
	w.commit(func(batch *pgx.Batch) { w.store.Resolve(batch, []uuid.UUID{a.ID, free.ID}) })
	if n := held(); n != 1 {
		t.Fatalf("%d held keys, want the other queue's", n)
	}
	w.commit(func(batch *pgx.Batch) { w.store.Resolve(batch, []uuid.UUID{b.ID}) })
	if n := get[int](w, `select count(*) from claimq.delayed_keys`); n != 0 {
		t.Fatalf("%d key rows are left", n)
	}
}
