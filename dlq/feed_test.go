package dlq_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/dlq"
)

// letter is one that has been through Put.
func feedLetter() *dlq.Letter {
	tenant, operation := "acme", "charge"
	return &dlq.Letter{
		ID: uuid.MustParse("3f333df6-90a4-5fda-8dd3-9485d27cee36"), Queue: 1, QueueName: "orders", Round: 2,
		Reason: dlq.Exhausted, ErrorClass: "*pgconn.PgError", ErrorMessage: "relation \"stock\" does not exist",
		Cause: uuid.MustParse("0a0a0a0a-0000-5000-8000-000000000001"), Attempts: 3, Starts: 4,
		Claim:  uuid.NullUUID{UUID: uuid.New(), Valid: true},
		Tenant: &tenant, Operation: &operation, Shown: "order-7",
		Source: &dlq.Source{Topic: 5, Partition: 11, Offset: 12345},
		Record: &kgo.Record{
			Topic: "orders-in", Key: []byte("k"), Value: []byte("v"), Timestamp: time.UnixMilli(1_700_000_000_123),
			Headers: []kgo.RecordHeader{{Key: "a", Value: []byte{0, 0xff}}, {Key: "a", Value: nil}, {Key: "", Value: []byte{}}},
		},
	}
}

func TestFeedHasTheRecordAndItsStory(t *testing.T) {
	t.Parallel()
	l := feedLetter()
	got, err := l.Feed("orders-dead", dlq.FeedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
	want := dlq.FeedRecord{
		Topic: "orders-dead", Key: l.Record.Key, Value: l.Record.Value, EffectID: got.EffectID,
		Headers: append(l.Record.Headers[:3:3],
			text("claimq-letter-id", "3f333df6-90a4-5fda-8dd3-9485d27cee36"),
			text("claimq-reason", "exhausted"),
			text("claimq-queue", "orders"),
			text("claimq-round", "2"),
			text("claimq-original-topic", "orders-in"),
			text("claimq-original-partition", "11"),
			text("claimq-original-offset", "12345"),
			text("claimq-original-timestamp", "2023-11-14T22:13:20.123Z"),
			text("claimq-attempts", "3"),
			text("claimq-id", "order-7"),
			text("claimq-tenant", "acme"),
			text("claimq-operation", "charge"),
			text("claimq-cause", "0a0a0a0a-0000-5000-8000-000000000001"),
			text("claimq-error-class", "*pgconn.PgError"),
			text("claimq-error-message", "relation \"stock\" does not exist")),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("fed record (-want +got):\n%s", diff)
	}
	if len(l.Record.Headers) != 3 {
		t.Fatalf("the letter's own record has %d headers now", len(l.Record.Headers))
	}
}

func TestFeedTellsNullFromEmpty(t *testing.T) {
	t.Parallel()
	for _, b := range [][]byte{nil, {}} {
		l := feedLetter()
		l.Record.Key, l.Record.Value, l.Source = b, b, nil
		got, err := l.Feed("dead", dlq.FeedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if (got.Key == nil) != (b == nil) || (got.Value == nil) != (b == nil) || got.Pointer {
			t.Errorf("key and value %#v were fed as %#v and %#v", b, got.Key, got.Value)
		}
		for _, h := range got.Headers {
			if h.Key == dlq.HeaderOriginalOffset {
				t.Errorf("a record that did not come from Kafka has an original offset")
			}
		}
	}
}

func TestFeedEffectIDHoldsTheRound(t *testing.T) {
	t.Parallel()
	ids := map[uuid.UUID]bool{}
	for round := 1; round <= 3; round++ {
		l := feedLetter()
		l.Round = round
		for range 2 {
			got, err := l.Feed("dead", dlq.FeedOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ids[got.EffectID] = true
		}
	}
	if len(ids) != 3 {
		t.Fatalf("%d effect ids for three rounds, each fed twice", len(ids))
	}
}

// 50 rounds of failure and replay, each fed record being the next round's
// original: claimq's headers are replaced and never grow (CASES C20).
func TestFeedHeadersStayConstantOverRounds(t *testing.T) {
	t.Parallel()
	l := feedLetter()
	l.ErrorMessage = strings.Repeat("long ", 64<<10/5)
	var counts, sizes []int
	for round := 10; round < 60; round++ { // two digits throughout
		l.Round = round
		got, err := l.Feed("dead", dlq.FeedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, h := range got.Headers {
			size += len(h.Key) + len(h.Value)
		}
		counts, sizes = append(counts, len(got.Headers)), append(sizes, size)
		l.Record.Headers = got.Headers
	}
	for i := range counts {
		if counts[i] != counts[0] || sizes[i] != sizes[0] {
			t.Fatalf("round %d has %d headers of %d bytes, the first had %d of %d", i+1, counts[i], sizes[i], counts[0], sizes[0])
		}
	}
	if sizes[0] > 4<<10 {
		t.Fatalf("headers have %d bytes", sizes[0])
	}
}

func TestFeedErrorTextIsCutAndSaysSo(t *testing.T) {
	t.Parallel()
	l := feedLetter()
	l.ErrorMessage = strings.Repeat("ü\x00", 64<<10)
	l.ErrorClass, l.QueueName, l.Shown = l.ErrorMessage, l.ErrorMessage, l.ErrorMessage
	got, err := l.Feed("dead", dlq.FeedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range got.Headers[3:] {
		if len(h.Value) > 1<<10 || !utf8.Valid(h.Value) || bytes.IndexByte(h.Value, 0) >= 0 {
			t.Errorf("%s is %d bytes of %.20q", h.Key, len(h.Value), h.Value)
		}
		if len(h.Value) > 200 && !strings.HasSuffix(string(h.Value), "[truncated]") {
			t.Errorf("%s was cut and ends with %q", h.Key, h.Value[len(h.Value)-20:])
		}
	}
}

// The case of CASES C20: an error text of 64 KiB and a value that leaves 200 bytes
// of the limit. The value stays whole.
func TestFeedKeepsTheValueBeforeItsOwnHeaders(t *testing.T) {
	t.Parallel()
	const limit = 1_000_000
	l := feedLetter()
	l.Record.Headers, l.Record.Key = nil, nil
	l.Record.Value = bytes.Repeat([]byte("v"), limit-200)
	l.ErrorMessage = strings.Repeat("e", 64<<10)
	got, err := l.Feed("dead", dlq.FeedOptions{MaxBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	if got.Pointer || !bytes.Equal(got.Value, l.Record.Value) {
		t.Fatal("the value was left out")
	}
	if got.Headers[0].Key != dlq.HeaderLetterID {
		t.Fatalf("without the letter's id nobody finds the rest: %v", got.Headers)
	}
}

func TestFeedBecomesAPointerWhenItMust(t *testing.T) {
	t.Parallel()
	big := bytes.Repeat([]byte("x"), 10_000)
	for name, c := range map[string]struct {
		change  func(*kgo.Record)
		pointer string
		headers int // of the record's own
		key     bool
	}{
		"a large value":                {func(r *kgo.Record) { r.Value = big }, "value", 3, true},
		"large headers":                {func(r *kgo.Record) { r.Headers[0].Value = big }, "value,headers", 0, true},
		"a large key":                  {func(r *kgo.Record) { r.Key = big }, "value,headers,key", 0, false},
		"a large header key":           {func(r *kgo.Record) { r.Headers[1].Key = string(big) }, "value,headers", 0, true},
		"all of them":                  {func(r *kgo.Record) { r.Key, r.Value, r.Headers[2].Value = big, big, big }, "value,headers,key", 0, false},
		"nothing is large":             {func(*kgo.Record) {}, "", 3, true},
		"a value that was null anyway": {func(r *kgo.Record) { r.Value, r.Key = nil, big }, "value,headers,key", 0, false},
	} {
		l := feedLetter()
		c.change(l.Record)
		got, err := l.Feed("dead", dlq.FeedOptions{MaxBytes: 4000})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		pointer, own := "", 0
		for _, h := range got.Headers {
			if h.Key == dlq.HeaderPointer {
				pointer = string(h.Value)
			}
			if !strings.HasPrefix(h.Key, dlq.HeaderPrefix) {
				own++
			}
		}
		if pointer != c.pointer || got.Pointer != (pointer != "") || own != c.headers || (got.Key != nil) != c.key || got.Pointer && got.Value != nil {
			t.Errorf("%s: pointer %q, %d own headers, key %v, value %d bytes", name, pointer, own, got.Key != nil, len(got.Value))
		}
	}
	if _, err := feedLetter().Feed("dead", dlq.FeedOptions{MaxBytes: 100}); !errors.Is(err, dlq.ErrNoRoom) {
		t.Errorf("a topic with room for nothing: %v, want ErrNoRoom", err)
	}
}

// Whatever the sizes are, what Feed returns is taken by a producer with that very
// limit; and nothing is left out that there was room for.
func TestFeedFitsWhatAProducerTakes(t *testing.T) {
	t.Parallel()
	const limit = 3000
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ProducerBatchMaxBytes(limit),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.Close)
	// check feeds a letter and produces the result.
	check := func(l *dlq.Letter) error {
		got, err := l.Feed("dead", dlq.FeedOptions{MaxBytes: limit})
		if err != nil {
			return err
		}
		produced := &kgo.Record{Topic: got.Topic, Key: got.Key, Value: got.Value, Headers: got.Headers}
		if err := producer.ProduceSync(t.Context(), produced).FirstErr(); err != nil {
			return fmt.Errorf("a record with %d bytes of value and %d headers: %w", len(got.Value), len(got.Headers), err)
		}
		if !got.Pointer {
			return nil
		}
		// The client counts the batch's length in front of it with two to five bytes,
		// as the protocol's version wants; Feed counts four.
		whole := &kgo.Record{Topic: "dead", Key: l.Record.Key, Value: append([]byte("1234"), l.Record.Value...), Headers: slices.Concat(l.Record.Headers,
			[]kgo.RecordHeader{{Key: dlq.HeaderLetterID, Value: []byte(l.ID.String())}})}
		if err := producer.ProduceSync(t.Context(), whole).FirstErr(); err == nil {
			return fmt.Errorf("a value of %d bytes was left out, and there was room for it", len(l.Record.Value))
		}
		return nil
	}
	// Every size around the limit, so the exact one too.
	for size := limit - 300; size <= limit; size++ {
		l := feedLetter()
		l.Record.Headers, l.Record.Value = nil, bytes.Repeat([]byte("v"), size)
		if err := check(l); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		l := feedLetter()
		bytesOf := func(name string) []byte {
			return bytes.Repeat([]byte("x"), max(0, rapid.SampledFrom([]int{0, 1, 60, 1000, limit}).Draw(rt, name)+rapid.IntRange(-200, 200).Draw(rt, "about")))
		}
		l.Record.Key, l.Record.Value = bytesOf("key"), bytesOf("value")
		l.Record.Headers = nil
		for i := range rapid.IntRange(0, 130).Draw(rt, "headers") {
			l.Record.Headers = append(l.Record.Headers, kgo.RecordHeader{Key: fmt.Sprint(i), Value: []byte{1}})
		}
		l.ErrorMessage = string(bytesOf("message"))
		if err := check(l); err != nil {
			rt.Fatal(err)
		}
	})
}
