package outbox

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/pgtest"
)

// realRelay is a relay between a test's schema and the shared, real Kafka.
func realRelay(t *testing.T) (*stage, *Relay) {
	t.Helper()
	db := pgtest.New(t)
	s := &stage{t: t, db: db, outbox: newOutbox(t, db, 0)}
	r, err := NewRelay(db.Pool, []kgo.Opt{kgo.SeedBrokers(kafkatest.Brokers(t)...)}, RelayConfig{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.slices[0].discard)
	return s, r
}

func TestRealKafkaGetsEveryByteInOrder(t *testing.T) {
	t.Parallel()
	s, r := realRelay(t)
	topic := kafkatest.Topic(t, 1)
	effects := awkwardEffects()
	for i := range effects {
		effects[i].Topic = topic
	}
	cause := Cause{Claim: testClaim}
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error {
		return s.outbox.Add(WithCause(ctx, cause), tx, effects...)
	})
	missing := kafkatest.UniqueName(t)
	s.add(missing, "k", "waits for its topic")
	s.drain(r)
	type record struct {
		Key, Value []byte
		Headers    []kgo.RecordHeader
	}
	var want, got []record
	for _, e := range effects {
		headers := append(append([]kgo.RecordHeader{}, e.Headers...),
			kgo.RecordHeader{Key: HeaderID, Value: []byte(cause.EffectID(e.Name, e.Step).String())})
		want = append(want, record{e.Key, e.Value, headers})
	}
	for _, r := range kafkatest.Fetch(t, kafkatest.Brokers(t), topic, len(effects)) {
		got = append(got, record{r.Key, r.Value, r.Headers})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("published records differ (-given +published):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"topic": 1}, s.scopes()); diff != "" {
		t.Fatalf("held (-want +got):\n%s", diff)
	}
}

// The records of a key that do not fit one batch together: the second is not out
// while the first is refused.
func TestRealKafkaLetsNothingOvertakeARefusedBatch(t *testing.T) {
	t.Parallel()
	s, r := realRelay(t)
	topic := kafkatest.TopicOn(t, kafkatest.Brokers(t), 1, map[string]string{"max.message.bytes": "500000"})
	value := func(name string, size int) []byte { return append([]byte(name+" "), incompressible(size)...) }
	values := [][]byte{value("refused", 900_000), value("behind it", 400_000), value("free", 10)}
	keys := []string{"k", "k", "other"}
	for i := range values {
		e := keyed(topic, keys[i], "")
		e.Value = values[i]
		inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, e) })
	}
	s.drain(r)
	got := kafkatest.Fetch(t, kafkatest.Brokers(t), topic, 1)
	if !bytes.Equal(got[0].Value, values[2]) {
		t.Fatalf("the topic begins with %.12q, want the record of the free key", got[0].Value)
	}
	if diff := cmp.Diff(map[string]int{"row": 1, "key": 1}, s.scopes()); diff != "" {
		t.Fatalf("held (-want +got):\n%s", diff)
	}
	kafkatest.Produce(t, topic, &kgo.Record{Value: []byte("end")})
	got = kafkatest.Fetch(t, kafkatest.Brokers(t), topic, 2)
	if string(got[1].Value) != "end" {
		t.Fatalf("%.12q went out before what it stands behind", got[1].Value)
	}
}

// incompressible makes bytes that no codec shortens, the same each time.
func incompressible(size int) []byte {
	out := make([]byte, 0, size+32)
	for i := 0; len(out) < size; i++ {
		id := Cause{Claim: testClaim}.EffectID(fmt.Sprint(i), 0)
		out = append(out, id[:]...)
	}
	return out[:size]
}
