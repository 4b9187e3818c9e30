package outbox

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestRelayPublishesEveryByteAsItWasGiven(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	effects := awkwardEffects()
	effects = effects[:len(effects)-1] // the last one's topic does not exist
	cause := Cause{Claim: testClaim, CorrelationID: "conversation", CausationID: "message"}
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error {
		return s.outbox.Add(WithCause(ctx, cause), tx, effects...)
	})
	r := s.relay(RelayConfig{})
	s.drain(r)
	reader := s.reader("t")
	reader.untilCount(t, len(effects))
	type record struct {
		Key, Value []byte
		Headers    []kgo.RecordHeader
	}
	var want, got []record
	for _, e := range effects {
		headers := append(append([]kgo.RecordHeader{}, e.Headers...),
			kgo.RecordHeader{Key: HeaderCorrelation, Value: []byte("conversation")},
			kgo.RecordHeader{Key: HeaderCausation, Value: []byte("message")},
			kgo.RecordHeader{Key: HeaderID, Value: []byte(cause.EffectID(e.Name, e.Step).String())})
		want = append(want, record{e.Key, e.Value, headers})
	}
	for _, r := range reader.all() {
		got = append(got, record{r.Key, r.Value, r.Headers})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("published records differ (-given +published):\n%s", diff)
	}
}

func TestAnEffectsOwnIDHeaderStays(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	own := Effect{ID: uuid.New(), Topic: "t", Headers: []kgo.RecordHeader{{Key: HeaderID, Value: []byte("own")}}}
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, own) })
	s.drain(s.relay(RelayConfig{}))
	reader := s.reader("t")
	reader.untilCount(t, 1)
	if diff := cmp.Diff(own.Headers, reader.all()[0].Headers); diff != "" {
		t.Fatalf("headers differ (-given +published):\n%s", diff)
	}
}

func TestRelayStartsStopsAndStartsAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader := s.reader("t")
	r := s.relay(RelayConfig{})
	if err := r.Stop(t.Context()); err != nil {
		t.Fatalf("stop a relay that was never started: %v", err)
	}
	for i, value := range []string{"first", "second"} {
		for range 2 {
			if err := r.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.add("t", "k", value)
		r.Wake()
		reader.untilCount(t, i+1)
		for range 2 {
			if err := r.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]string{"first", "second"}, reader.values()); diff != "" {
		t.Fatalf("published (-want +got):\n%s", diff)
	}
	if stats := r.Stats(); stats.Published != 2 || stats.Leased != 0 || stats.Failures != 0 {
		t.Errorf("stats after the stop: %+v", stats)
	}
}

func TestStopGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader := s.reader("t")
	first, second := s.relay(RelayConfig{}), s.relay(RelayConfig{})
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first relay has the slice", func() bool { return first.Stats().Leased == 1 })
	if did := s.round(second); did.standby != 1 {
		t.Fatalf("a second relay took a slice that is leased: %+v", did)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.add("t", "k", "v")
	if did := s.round(second); did.published != 1 {
		t.Fatalf("the second relay did not take over at once: %+v", did)
	}
	reader.untilCount(t, 1)
}
