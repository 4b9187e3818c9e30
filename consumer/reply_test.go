package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/outbox"
)

// replying is the rig's queue with answers; calls counts executions.
func (r *rig) replying(calls *atomic.Int32) consumer.Config {
	c := r.config()
	c.OnDuplicate, c.Reply = consumer.SendReply, consumer.Reply{Topic: "answers"}
	c.Handler = consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error {
		n := calls.Add(1)
		return m.SetResult(fmt.Appendf(nil, "execution %d of %s", n, m.Identity.ID))
	})
	return c
}

// answers returns the answers in the outbox, in their order: value, status, and
// which of the ids seen so far it has.
func (r *rig) answers() []string {
	r.t.Helper()
	numbers := map[string]int{}
	var list []string
	for _, text := range r.strings(`select id::text || '|' || convert_from(value, 'UTF8') || '|' || convert_from(header_values[1], 'UTF8')
		from %s.outbox where topic = 'answers' and header_keys[1] = 'claimq-status' order by seq`) {
		id, rest, _ := strings.Cut(text, "|")
		if _, seen := numbers[id]; !seen {
			numbers[id] = len(numbers) + 1
		}
		list = append(list, fmt.Sprintf("%d|%s", numbers[id], rest))
	}
	return list
}

func TestRepeatsAreAnsweredWithTheSameBytesUnderTheSameID(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	var calls atomic.Int32
	r.start(r.replying(&calls))
	// Two in one batch, most likely; one in a later batch; one in another partition.
	r.produce(message(0, "m1", "k", "v"), message(0, "m1", "k", "v"))
	eventually(t, "the first repeat is dropped", func() bool { return r.outcome("duplicate") == 1 })
	r.produce(message(0, "m1", "k", "v"))
	eventually(t, "the second", func() bool { return r.outcome("duplicate") == 2 })
	r.produce(message(1, "m1", "other", "v"))
	eventually(t, "the third", func() bool { return r.outcome("duplicate") == 3 })
	answer := "1|execution 1 of m1|result"
	if diff := cmp.Diff([]string{answer, answer, answer, answer}, r.answers()); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if calls.Load() != 1 {
		t.Errorf("the handler ran %d times", calls.Load())
	}
}

func TestOneBatchOfCopiesIsAnsweredOneByOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var calls atomic.Int32
	c := r.replying(&calls)
	c.Concurrency = 1
	r.produce(message(0, "m1", "k", "v"), message(0, "m2", "k", "v"), message(0, "m1", "k", "v"), message(0, "m1", "k", "v"))
	r.start(c)
	eventually(t, "all are decided", func() bool { return r.outcome("processed")+r.outcome("duplicate") == 4 })
	count := map[string]int{}
	for _, answer := range r.answers() {
		_, rest, _ := strings.Cut(answer, "|")
		count[rest]++
	}
	if len(count) != 2 {
		t.Fatalf("answers: %v", count)
	}
	for answer, n := range count {
		if want := map[bool]int{true: 3, false: 1}[strings.Contains(answer, "m1")]; n != want {
			t.Errorf("%q is there %d times, want %d", answer, n, want)
		}
	}
}

// Copies that arrive everywhere at once, while the first is being handled.
func TestConcurrentRepeatsGetTheOneResult(t *testing.T) {
	t.Parallel()
	const partitions, copies = 4, 10
	r := newRig(t, partitions)
	var calls atomic.Int32
	c := r.replying(&calls)
	c.Concurrency, c.Batch.Messages = 4, 1
	for p := range int32(partitions) {
		for i := range copies {
			r.produce(message(p, "m1", fmt.Sprint("k", p, i), "v"))
		}
	}
	r.start(c)
	eventually(t, "all are decided", func() bool { return r.outcome("processed")+r.outcome("duplicate") == partitions*copies })
	answers := r.answers()
	if len(answers) != partitions*copies {
		t.Errorf("%d answers, want %d", len(answers), partitions*copies)
	}
	for i, answer := range answers {
		if answer != answers[0] {
			t.Errorf("answer %d is %q, and the first %q", i, answer, answers[0])
		}
	}
	if r.outcome("processed") != 1 {
		t.Errorf("%d were processed", r.outcome("processed"))
	}
}

func TestARepeatAfterTheResultsLifeIsToldSoAndDoesNotRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var calls atomic.Int32
	r.start(r.replying(&calls))
	r.produce(message(0, "m1", "k", "v"))
	eventually(t, "it is processed", func() bool { return r.outcome("processed") == 1 })
	r.exec(`update ` + r.db.Schema + `.results set created_at = now() - interval '9 days', expires_at = now() - interval '1 s'`)
	for i := range 2 {
		r.produce(message(0, "m1", "k", "v"))
		eventually(t, "the repeat is dropped", func() bool { return r.outcome("duplicate") == i+1 })
	}
	// The answer that says so is another record than the result was: a consumer that
	// has the result drops nothing but copies.
	want := []string{"1|execution 1 of m1|result", "2||result_expired", "2||result_expired"}
	if diff := cmp.Diff(want, r.answers()); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if calls.Load() != 1 {
		t.Errorf("the handler ran %d times", calls.Load())
	}
}

// Only a success is answered: at the second attempt, and not when it is dead.
func TestAnswersComeWithTheSuccess(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var calls atomic.Int32
	c := r.replying(&calls)
	c.Retry = soon
	c.Handler = consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error {
		switch {
		case string(m.Record.Value) == "dies":
			return consumer.Permanent(errBoom)
		case string(m.Record.Value) == "skips":
			return consumer.Skip("nothing to do")
		case m.Attempt == 1:
			return errors.Join(m.SetResult([]byte("never to be seen")), errBoom)
		}
		return nil // leaves no result, which is an empty one
	})
	r.start(c)
	r.produce(message(0, "m1", "a", "late"), message(0, "m2", "b", "dies"), message(0, "m3", "c", "skips"))
	eventually(t, "all are decided", func() bool {
		return r.outcome("processed") == 1 && r.outcome("dead") == 1 && r.outcome("skipped") == 1
	})
	r.produce(message(0, "m1", "a", "late"), message(0, "m3", "c", "skips"))
	eventually(t, "the repeats are dropped", func() bool { return r.outcome("duplicate") == 2 })
	if got := r.answers(); len(got) != 4 || strings.Join(got, ",") != strings.ReplaceAll(strings.Join(got, ","), "expired", "") {
		t.Errorf("answers: %v, want two for each message that succeeded, none expired", got)
	}
	if n := r.count(`select count(distinct id) from %s.outbox where topic = 'answers' and octet_length(value) = 0`); n != 2 {
		t.Errorf("%d different answers with an empty value, want 2", n)
	}
}

// What is known without this transaction's claim, or with a key that cannot be read.
func TestAnswersOfImportedClaimsAndKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var calls atomic.Int32
	c := r.replying(&calls)
	c.Reply.Key = dedup.Header("reply-key")
	r.start(c)
	keyed := message(0, "m1", "k", "v")
	keyed.Headers = append(keyed.Headers, kgo.RecordHeader{Key: "reply-key", Value: []byte("client-7")}, kgo.RecordHeader{Key: "correlation-id", Value: []byte("c-1")})
	r.produce(keyed, message(0, "m2", "k", "v"))
	eventually(t, "both are processed", func() bool { return r.outcome("processed") == 2 })
	r.exec(`delete from ` + r.db.Schema + `.results`)
	r.produce(keyed)
	eventually(t, "the repeat is dropped", func() bool { return r.outcome("duplicate") == 1 })
	got := r.strings(`select coalesce(convert_from(key, 'UTF8'), 'null') || ' ' || convert_from(correlation_id, 'UTF8') || ' ' || convert_from(causation_id, 'UTF8')
		|| ' ' || convert_from(header_values[1], 'UTF8') from %s.outbox where topic = 'answers' order by seq`)
	want := []string{"client-7 c-1 m1 result", "null m2 m2 result", "client-7 c-1 m1 result_expired"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

func TestWithoutRepliesARepeatGetsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var calls atomic.Int32
	c := r.replying(&calls)
	c.OnDuplicate, c.Reply = consumer.Drop, consumer.Reply{}
	r.start(c)
	r.produce(message(0, "m1", "k", "v"), message(0, "m1", "k", "v"))
	eventually(t, "both are decided", func() bool { return r.outcome("duplicate") == 1 })
	if n := r.count(`select count(*) from %s.outbox`); n != 0 {
		t.Errorf("%d effects", n)
	}
	if n := r.count(`select count(*) from %s.results`); n != 1 {
		t.Errorf("%d results, want the one that the handler left", n)
	}
}

func TestRepliesThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	good := consumer.Config{
		Queue: "q", Topics: []string{"orders"}, Rules: dedup.Rules{ID: []dedup.Source{dedup.Header("id")}},
		Handler:     consumer.One(func(context.Context, pgx.Tx, *consumer.Message) error { return nil }),
		OnDuplicate: consumer.SendReply, Reply: consumer.Reply{Topic: "answers"},
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		spoil func(c *consumer.Config)
		field string
	}{
		"no topic":        {func(c *consumer.Config) { c.Reply.Topic = "" }, "Reply.Topic"},
		"its own topic":   {func(c *consumer.Config) { c.Reply.Topic = "orders" }, "Reply.Topic"},
		"no topic's name": {func(c *consumer.Config) { c.Reply.Topic = "an swers" }, "Reply.Topic"},
		"no claims":       {func(c *consumer.Config) { c.Claims = consumer.ClaimNone }, "OnDuplicate"},
		"dropped":         {func(c *consumer.Config) { c.OnDuplicate = consumer.Drop }, "Reply"},
	} {
		c := good
		test.spoil(&c)
		wrong, ok := errors.AsType[*consumer.ConfigError](c.Validate())
		if !ok || wrong.Field != test.field {
			t.Errorf("%s: %v, want an error of %s", name, c.Validate(), test.field)
		}
	}
	if err := new(consumer.Message).Emit(outbox.Effect{Name: "claimq.reply", Topic: "t"}); err == nil {
		t.Error("a handler may emit an effect under the answers' name")
	}
}

// A queue that reads what another queue of claimq has published: copies of an effect
// are dropped by what the outbox gives every record, and what is no effect is
// rejected, not taken for a repeat.
func TestAConsumerOfEffectsDropsTheirRepeats(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Rules = dedup.Rules{ID: []dedup.Source{dedup.Effect()}}
	r.start(c)
	const id = "0195d3a4-1d1c-5cc0-8f0e-3d7f3f6f2b11"
	r.produce(message(0, id, "k", "v"), message(0, "4711", "k", "v"), message(0, id, "k", "v"), message(0, "4711", "k", "v"))
	eventually(t, "all are decided", func() bool {
		return r.outcome("processed") == 1 && r.outcome("duplicate") == 1 && r.outcome("dead") == 2
	})
	if n := r.count(`select count(*) from %s.dead_letters where reason = 'missing_id'`); n != 2 {
		t.Errorf("%d dead letters without an id, want 2", n)
	}
}
