package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// A writer of a random history: an open transaction and what it has added.
type writer struct {
	tx    pgx.Tx
	conn  *pgx.Conn
	added []addition
	keys  map[string]bool // keys that it holds until it ends, as a locked aggregate
}

type addition struct{ key, value string }

// history is a random history and what it must lead to.
type history struct {
	*stage
	topic   string
	writers []*writer
	relays  []*Relay
	held    map[string]bool // keys that an open writer holds
	// want holds for each key the values in the order of their transactions.
	want  map[string][]string
	count int
	slot  int
}

// TestRandomHistories drives writers that commit, roll back and linger, relays
// that die at any step and are replaced, rotation, and brokers that refuse and
// time out; at the end every committed effect is out, none that was rolled back
// is, and the first copies of each key are in order.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1)
	s.setSlot(0)
	topics := 0
	rapid.Check(t, func(rt *rapid.T) {
		topics++
		h := &history{stage: s, topic: fmt.Sprint("history-", topics), held: map[string]bool{}, want: map[string][]string{}}
		s.createTopic(h.topic, 2, nil)
		h.replaceRelay(rt, 0)
		h.replaceRelay(rt, 1)
		rt.Repeat(map[string]func(*rapid.T){
			"add":      h.add,
			"add more": h.add,
			"end":      h.end,
			"relay":    h.relayRound,
			"crash":    h.crash,
			"rotate":   h.rotate,
			"fault":    h.fault,
		})
		h.finish(rt)
	})
}

func (h *history) add(t *rapid.T) {
	which := rapid.IntRange(0, 4).Draw(t, "writer")
	for len(h.writers) <= which {
		h.writers = append(h.writers, nil)
	}
	if h.writers[which] == nil {
		conn, err := pgx.Connect(h.t.Context(), h.db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := conn.Begin(h.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h.writers[which] = &writer{tx: tx, conn: conn, keys: map[string]bool{}}
	}
	w := h.writers[which]
	key := fmt.Sprint("key", rapid.IntRange(0, 5).Draw(t, "key"))
	if h.held[key] && !w.keys[key] {
		return // another transaction has the aggregate: this one would wait
	}
	h.held[key], w.keys[key] = true, true
	h.count++
	value := fmt.Sprint(h.topic, " ", h.count)
	if err := h.outbox.Add(h.t.Context(), w.tx, keyed(h.topic, key, value)); err != nil {
		t.Fatal(err)
	}
	w.added = append(w.added, addition{key, value})
}

func (h *history) end(t *rapid.T) {
	for i, w := range h.writers {
		if w == nil || !rapid.Bool().Draw(t, "ends") {
			continue
		}
		h.endWriter(t, i, rapid.IntRange(0, 3).Draw(t, "commits") > 0)
	}
}

func (h *history) endWriter(t *rapid.T, i int, commit bool) {
	w := h.writers[i]
	h.writers[i] = nil
	finish := w.tx.Rollback
	if commit {
		finish = w.tx.Commit
		for _, a := range w.added {
			h.want[a.key] = append(h.want[a.key], a.value)
		}
	}
	if err := finish(h.t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = w.conn.Close(h.t.Context())
	for key := range w.keys {
		delete(h.held, key)
	}
}

func (h *history) replaceRelay(t *rapid.T, i int) {
	for len(h.relays) <= i {
		h.relays = append(h.relays, nil)
	}
	if old := h.relays[i]; old != nil {
		for _, slice := range old.slices {
			slice.discard()
		}
	}
	r, err := NewRelay(h.db.Pool, h.options(), RelayConfig{
		Schema: h.db.Schema, Slices: 2, ProduceTimeout: time.Second, Instance: fmt.Sprint(h.topic, "-", i),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.maxPage = rapid.IntRange(1, 4).Draw(t, "page")
	r.maxList = rapid.IntRange(2, 20).Draw(t, "list")
	if rapid.Bool().Draw(t, "writes its place at every page") {
		r.commitEvery = 0
	}
	h.relays[i] = r
}

// relayRound lets a relay work; what it cannot do now it does later.
func (h *history) relayRound(t *rapid.T) {
	r := h.relays[rapid.IntRange(0, 1).Draw(t, "relay")]
	for range rapid.IntRange(1, 3).Draw(t, "rounds") {
		_, _ = r.runOnce(h.t.Context())
	}
}

// crash ends a relay at a random step, and lets its leases end.
func (h *history) crash(t *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(t, "relay")
	at := rapid.SampledFrom([]step{stepListed, stepRead, stepPublished, stepAdvanced}).Draw(t, "step")
	nth := rapid.IntRange(1, 3).Draw(t, "nth")
	seen := 0
	h.relays[i].step = func(now step) error {
		if now == at {
			if seen++; seen == nth {
				return errCrash
			}
		}
		return nil
	}
	_, err := h.relays[i].runOnce(h.t.Context())
	h.relays[i].step = nil
	if errors.Is(err, errCrash) {
		h.replaceRelay(t, i)
	}
	if rapid.Bool().Draw(t, "leases end") {
		h.endLeases()
	}
}

// rotate moves the rings' clock and tries to empty the slots.
func (h *history) rotate(t *rapid.T) {
	if rapid.Bool().Draw(t, "clock moves") {
		h.slot = (h.slot + 1) % slots
		h.exec("update claimq.test_slot set slot = $1", h.slot)
	}
	h.relays[0].rotateOnce(h.t.Context())
}

// fault makes the next produce request go wrong.
func (h *history) fault(t *rapid.T) {
	if rapid.Bool().Draw(t, "after the append") {
		h.timeoutAfterAppend(1)
		return
	}
	h.failNext(rapid.SampledFrom([]int16{6, 7, 19}).Draw(t, "code")) // not leader, timed out, not enough replicas
}

// finish ends all writers and lets the relays drain, then compares.
func (h *history) finish(t *rapid.T) {
	for i, w := range h.writers {
		if w != nil {
			h.endWriter(t, i, rapid.Bool().Draw(t, "commits at last"))
		}
	}
	h.endLeases()
	total := 0
	for _, values := range h.want {
		total += len(values)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		did, err := h.relays[0].runOnce(h.t.Context())
		if err == nil && did == (result{}) {
			break
		}
		if did.standby > 0 {
			h.endLeases()
		}
		if time.Now().After(deadline) {
			t.Fatalf("the relay does not come to an end: %+v, %v", did, err)
		}
	}
	for _, r := range h.relays {
		for _, slice := range r.slices {
			slice.discard()
		}
	}
	got := h.firstCopies(t, total)
	if diff := cmp.Diff(h.want, got); diff != "" {
		t.Fatalf("first copies by key (-committed +published):\n%s", diff)
	}
	if held := h.stage.held(); len(held) != 0 {
		t.Fatalf("%d rows were set aside: %+v", len(held), held[0])
	}
}

// firstCopies reads the topic to its end.
func (h *history) firstCopies(t *rapid.T, atLeast int) map[string][]string {
	records := h.readAll(t, h.topic)
	seen := map[string]bool{}
	got := map[string][]string{}
	for _, record := range records {
		if id := idOf(record); !seen[id] {
			seen[id] = true
			got[string(record.Key)] = append(got[string(record.Key)], string(record.Value))
		}
	}
	if len(seen) < atLeast {
		t.Errorf("%d of %d committed effects are in the topic", len(seen), atLeast)
	}
	return got
}

// TestConcurrentWritersRotationAndCrashes is the same with everything at once:
// writers that serialise on a locked aggregate and linger, relays that are cut off
// without a word and replaced, slots that go round every few milliseconds.
func TestConcurrentWritersRotationAndCrashes(t *testing.T) {
	t.Parallel()
	s := newStage(t, 3, "t")
	s.holdXmin()
	s.setSlot(0)
	const keys, writers, each = 6, 6, 60
	s.exec("create table claimq.aggregates (id int primary key, version int not null)")
	s.exec("insert into claimq.aggregates select i, 0 from generate_series(0, $1) i", keys-1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var working sync.WaitGroup
	var committed atomic.Int64
	for w := range writers {
		working.Go(func() {
			for i := range each {
				if s.writeVersion(ctx, (w*7+i*5)%keys, i) {
					committed.Add(1)
				}
			}
		})
	}
	background := s.disturb(ctx)
	working.Wait()
	cancel()
	background()
	last := s.relay(RelayConfig{Slices: 2})
	// A relay that was cut off can have a statement under way that takes or renews a
	// lease once more.
	eventually(t, "nobody else has a slice", func() bool {
		s.endLeases()
		return s.round(last).standby == 0
	})
	s.drain(last)
	reader := s.reader("t")
	reader.until(t, fmt.Sprintf("%d effects", committed.Load()), func() bool { return int64(len(reader.firsts())) >= committed.Load() })
	next := map[string]int{}
	seen := map[string]bool{}
	for _, record := range reader.all() {
		if id := idOf(record); !seen[id] {
			seen[id] = true
			next[string(record.Key)]++
			if want := fmt.Sprint(next[string(record.Key)]); string(record.Value) != want {
				t.Fatalf("key %s: version %s comes where %s is due", record.Key, record.Value, want)
			}
		}
	}
	if int64(len(seen)) != committed.Load() {
		t.Fatalf("%d effects were published, %d committed", len(seen), committed.Load())
	}
	t.Logf("%d effects, %d records", len(seen), len(reader.all()))
}

// writeVersion raises an aggregate's version and publishes it; every fifth time it
// rolls back. It reports whether it has committed.
func (s *stage) writeVersion(ctx context.Context, aggregate, i int) bool {
	rollback := errors.New("roll back")
	err := pgx.BeginFunc(ctx, s.db.Pool, func(tx pgx.Tx) error {
		if i%3 == 0 { // has its xid long before its turn
			if _, err := tx.Exec(ctx, s.sql("select pg_current_xact_id()")); err != nil {
				return err
			}
		}
		var version int
		err := tx.QueryRow(ctx, s.sql("update claimq.aggregates set version = version + 1 where id = $1 returning version"), aggregate).Scan(&version)
		if err != nil {
			return err
		}
		if err := s.outbox.Add(ctx, tx, keyed("t", fmt.Sprint(aggregate), fmt.Sprint(version))); err != nil {
			return err
		}
		if i%4 == 0 { // lingers
			if _, err := tx.Exec(ctx, "select pg_sleep(0.01)"); err != nil {
				return err
			}
		}
		if i%5 == 4 {
			return rollback
		}
		return nil
	})
	if err != nil && !errors.Is(err, rollback) {
		s.t.Errorf("a writer: %v", err)
	}
	return err == nil
}

// disturb runs relays that are cut off again and again, and turns the rings, until
// ctx ends; the returned function waits for all of it.
func (s *stage) disturb(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	for i := range 2 {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r, err := NewRelay(s.db.Pool, s.options(), RelayConfig{Schema: s.db.Schema, Slices: 2, RotateEvery: 5 * time.Millisecond})
				if err != nil {
					s.t.Error(err)
					return
				}
				r.maxPage = 3
				life, cut := context.WithTimeout(ctx, time.Duration(30+40*((n+i)%4))*time.Millisecond)
				if err := r.Start(life); err == nil {
					<-r.runs.done
				}
				cut()
			}
		})
	}
	running.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for slot := 0; ; slot++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			_, err := s.db.Pool.Exec(ctx, s.sql("update claimq.test_slot set slot = $1"), slot%slots)
			if err != nil && ctx.Err() == nil {
				s.t.Errorf("turn the rings: %v", err)
			}
		}
	})
	return running.Wait
}
