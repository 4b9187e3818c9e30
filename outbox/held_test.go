package outbox

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
)

// dueNow makes every row that is set aside due, as waiting would.
func (s *stage) dueNow(r *Relay) {
	s.t.Helper()
	s.exec("update claimq.outbox_held set next_at = clock_timestamp() where scope <> 'key'")
	for _, slice := range r.slices {
		slice.heldLooked = slice.heldLooked.Add(-heldEvery)
	}
}

func (s *stage) held() []Held {
	s.t.Helper()
	list, err := s.outbox.Held(s.t.Context(), s.db.Pool, 0, 10_000)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// scopes tells how many rows are set aside for each scope.
func (s *stage) scopes() map[string]int {
	s.t.Helper()
	count := map[string]int{}
	for _, h := range s.held() {
		count[h.Scope]++
	}
	return count
}

// C27: bad rows in front, and enough of them to fill a page.
func TestBadRowsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	bad := map[string]func(i int) Effect{
		"larger than the producer's batch": func(i int) Effect {
			return Effect{ID: keyed("", "", "").ID, Topic: "t", Key: fmt.Append(nil, "bad", i), Value: bytes.Repeat([]byte{1}, 2<<20), NoSizeLimit: true}
		},
		"larger than the topic's limit": func(i int) Effect {
			return keyed("narrow", fmt.Sprint("bad", i), strings.Repeat("x", 20_000))
		},
		"topic missing": func(i int) Effect { return keyed("missing", fmt.Sprint("bad", i), "v") },
		"refused by the broker": func(i int) Effect {
			return keyed("t", fmt.Sprint("bad", i), "POISON")
		},
	}
	for name, badEffect := range bad {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 1, "t")
			s.refusePoison(kerr.InvalidRecord.Code)
			limit := "10000"
			s.createTopic("narrow", 1, map[string]*string{"max.message.bytes": &limit})
			reader, r := s.reader("t"), s.relay(RelayConfig{RetryInitial: 10 * time.Minute, RetryMax: time.Hour})
			r.maxPage = 10
			const bads, goods = 11, 100
			var want []string
			inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error {
				for i := range bads {
					if err := s.outbox.Add(ctx, tx, badEffect(i)); err != nil {
						return err
					}
				}
				for i := range goods {
					want = append(want, fmt.Sprint(i))
					if err := s.outbox.Add(ctx, tx, keyed("t", fmt.Sprint("good", i), want[i])); err != nil {
						return err
					}
				}
				return nil
			})
			if did := s.round(r); did.published != goods || did.setAside != bads {
				t.Fatalf("one round published %d and set %d aside, want %d and %d", did.published, did.setAside, goods, bads)
			}
			reader.untilCount(t, goods)
			if diff := cmp.Diff(want, reader.values()); diff != "" {
				t.Fatalf("published (-want +got):\n%s", diff)
			}
			for _, h := range s.held() {
				behindTopic := h.Scope == scopeTopic && h.Attempts == 0 // on a later page than the probe
				if h.Reason == "" || h.Attempts != 1 && !behindTopic || !h.NextAt.After(h.HeldAt) {
					t.Errorf("held: %+v", h)
				}
			}
			// Not due: nothing is tried however often the relay looks.
			for range 20 {
				s.round(r)
			}
			for _, h := range s.held() {
				if h.Attempts > 1 {
					t.Fatalf("a bad row was tried %d times within its first delay", h.Attempts)
				}
			}
			// Due: tried once, and then later than before.
			before := s.held()
			s.dueNow(r)
			s.drain(r)
			after := s.held()
			if len(after) != bads {
				t.Fatalf("%d rows are held after the second try, want %d", len(after), bads)
			}
			for i, h := range after {
				if name == "topic missing" && i > 0 {
					continue // the oldest is the topic's probe
				}
				if h.Attempts != 2 || h.NextAt.Sub(before[i].NextAt) <= 0 {
					t.Errorf("after the second try: %+v", h)
				}
			}
		})
	}
}

// Only the key of a refused record waits, in order; records without an order
// never do.
func TestOnlyTheKeyOfARefusedRecordWaits(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	allow, _ := s.refusePoison(kerr.InvalidRecord.Code)
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error {
		free := keyed("t", "a", "a unordered")
		free.Unordered = true
		return s.outbox.Add(ctx, tx,
			keyed("t", "a", "a1"), keyed("t", "a", "a2 POISON"), keyed("t", "b", "b1"), keyed("t", "a", "a3"),
			keyed("t", "", "null key"), free)
	})
	s.drain(r)
	s.add("t", "a", "a4")
	s.add("t", "b", "b2")
	s.drain(r)
	reader.untilCount(t, 5)
	want := []string{"a1", "b1", "null key", "a unordered", "b2"}
	if diff := cmp.Diff(want, reader.values()); diff != "" {
		t.Fatalf("published while a2 is refused (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"row": 1, "key": 2}, s.scopes()); diff != "" {
		t.Fatalf("held (-want +got):\n%s", diff)
	}
	allow()
	s.dueNow(r)
	s.add("t", "a", "a5")
	s.drain(r)
	want = append(want, "a2 POISON", "a3", "a4", "a5")
	reader.untilCount(t, len(want))
	if diff := cmp.Diff(want, reader.values()); diff != "" {
		t.Fatalf("published in the end (-want +got):\n%s", diff)
	}
	if held := s.held(); len(held) != 0 {
		t.Fatalf("still held: %+v", held)
	}
}

// A run behind a refused record that itself holds refused ones, and is longer
// than what one round takes.
func TestALongRunBehindARefusedRecordGoesOutInOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	allow, _ := s.refusePoison(kerr.InvalidRecord.Code)
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	const n = 2*followersAtOnce + 10
	var want []string
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error {
		var effects []Effect
		for i := range n {
			value := fmt.Sprint(i)
			if i == 0 || i == 3 {
				value += " POISON"
			}
			want = append(want, value)
			effects = append(effects, keyed("t", "k", value))
		}
		return s.outbox.Add(ctx, tx, effects...)
	})
	s.drain(r)
	if diff := cmp.Diff(map[string]int{"row": 1, "key": n - 1}, s.scopes()); diff != "" {
		t.Fatalf("held (-want +got):\n%s", diff)
	}
	allow()
	for range 10 {
		s.dueNow(r)
		s.drain(r)
	}
	reader.untilCount(t, n)
	if diff := cmp.Diff(want, reader.values()); diff != "" {
		t.Fatalf("published (-want +got):\n%s", diff)
	}
	if held := s.held(); len(held) != 0 {
		t.Fatalf("%d records are still held", len(held))
	}
}

// C19: records of a topic that does not exist wait as rows, and go out in order
// when it is created, all of them and not one a delay.
func TestRecordsOfAMissingTopicGoOutWhenItIsCreated(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	var want []string
	for i := range 250 {
		want = append(want, fmt.Sprint(i))
		s.add("missing", fmt.Sprint("key", i%150), want[i])
		if i == 100 {
			s.drain(r)
		}
	}
	s.drain(r)
	if diff := cmp.Diff(map[string]int{"topic": 150, "key": 100}, s.scopes()); diff != "" {
		t.Fatalf("held (-want +got):\n%s", diff)
	}
	if reason := s.held()[0].Reason; !strings.Contains(reason, "create the topic") {
		t.Errorf("the reason does not say what to do: %s", reason)
	}
	s.createTopic("missing", 1, nil)
	reader := s.reader("missing")
	s.dueNow(r)
	for range 3 {
		r.slices[0].heldLooked = r.slices[0].heldLooked.Add(-heldEvery)
		s.drain(r)
	}
	reader.untilCount(t, len(want))
	last := map[string]int{}
	for _, record := range reader.all() {
		var i int
		_, _ = fmt.Sscan(string(record.Value), &i)
		if before, seen := last[string(record.Key)]; seen && before > i {
			t.Errorf("key %s: %d after %d", record.Key, i, before)
		}
		last[string(record.Key)] = i
	}
	got := reader.values()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("published (-want +got):\n%s", diff)
	}
	if held := s.held(); len(held) != 0 {
		t.Fatalf("%d records are still held", len(held))
	}
}

// A topic with a small max.message.bytes takes many small records: a batch that
// is too large as a whole is no reason to set any of them aside.
func TestABatchTooLargeForItsTopicIsSplit(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1)
	limit := "5000"
	s.createTopic("narrow", 1, map[string]*string{"max.message.bytes": &limit})
	reader, r := s.reader("narrow"), s.relay(RelayConfig{})
	const n = 500
	var want []string
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error {
		var effects []Effect
		for i := range n {
			want = append(want, fmt.Sprintf("%d %s", i, strings.Repeat("x", 200)))
			effects = append(effects, keyed("narrow", "k", want[i]))
		}
		return s.outbox.Add(ctx, tx, effects...)
	})
	s.drain(r)
	reader.untilCount(t, n)
	if diff := cmp.Diff(want, reader.values()); diff != "" {
		t.Fatalf("published (-want +got):\n%s", diff)
	}
	if held := s.held(); len(held) != 0 {
		t.Fatalf("%d records are held: %+v", len(held), held[0])
	}
}

// The records of a key that do not fit one batch together: the second is not out
// while the first is refused.
func TestNothingOvertakesARefusedBatch(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	allow, refused := s.refusePoison(kerr.InvalidRecord.Code)
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	half := strings.Repeat("x", 600_000) // two of them do not fit one batch
	want := []string{"first POISON" + half, "second" + half, "third" + half}
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error {
		return s.outbox.Add(ctx, tx, keyed("t", "k", want[0]), keyed("t", "k", want[1]), keyed("t", "k", want[2]))
	})
	s.drain(r)
	if refused.Load() == 0 {
		t.Fatal("the broker was not asked")
	}
	allow()
	s.dueNow(r)
	s.drain(r)
	reader.untilCount(t, 3)
	for i, value := range reader.values() {
		if value != want[i] {
			t.Fatalf("record %d is %.12s, want %.12s", i, value, want[i])
		}
	}
}

// C23 for the relay: brokers that are away, or cannot take anything, are nobody's
// fault; nothing is set aside, and nothing is lost.
func TestAnOutageSetsNothingAside(t *testing.T) {
	t.Parallel()
	for _, code := range []int16{kerr.NotEnoughReplicas.Code, kerr.NotLeaderForPartition.Code, kerr.RequestTimedOut.Code} {
		t.Run(kerr.ErrorForCode(code).Error()[:12], func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 1, "t")
			end, asked := s.answerAll(code)
			reader, r := s.reader("t"), s.relay(RelayConfig{})
			var want []string
			for i := range 20 {
				want = append(want, fmt.Sprint(i))
				s.add("t", "k", want[i])
			}
			if err := r.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the relay has tried a few times", func() bool { return asked.Load() > 5 })
			if held := s.held(); len(held) != 0 {
				t.Fatalf("%d records were set aside in an outage", len(held))
			}
			end()
			reader.untilCount(t, len(want))
			if diff := cmp.Diff(want, reader.firsts()); diff != "" {
				t.Fatalf("published (-want +got):\n%s", diff)
			}
		})
	}
}

// C28: a broker that appends and says that it timed out. The records are in the
// topic, and rows are done only because they are.
func TestATimeoutAfterTheAppendLosesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	s.timeoutAfterAppend(2)
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	s.add("t", "k", "1")
	s.drain(r)
	s.add("t", "k", "2")
	s.drain(r)
	reader.until(t, "both records", func() bool { return len(reader.firsts()) == 2 })
	if diff := cmp.Diff([]string{"1", "2"}, reader.firsts()); diff != "" {
		t.Fatalf("first copies (-want +got):\n%s", diff)
	}
}

// C28: the first send is given up in the middle, with its outcome unknown, and the
// second goes through another producer.
func TestAGivenUpSendIsSentAgainByAnotherProducer(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	held := s.holdProduce()
	s.add("t", "k", "1")
	ctx, giveUp := context.WithCancel(t.Context())
	go func() {
		<-held.asked
		giveUp()
	}()
	if _, err := r.runOnce(ctx); err == nil {
		t.Fatal("a round whose send was given up reports success")
	}
	if r.slices[0].publisher != nil {
		t.Fatal("the producer whose outcome is unknown is kept")
	}
	held.release()
	s.add("t", "k", "2")
	s.drain(r)
	reader.until(t, "both records", func() bool { return len(reader.firsts()) == 2 })
	if diff := cmp.Diff([]string{"1", "2"}, reader.firsts()); diff != "" {
		t.Fatalf("first copies (-want +got):\n%s", diff)
	}
}
