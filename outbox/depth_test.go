package outbox

import (
	"testing"
	"time"
)

func TestDepthCountsWhatIsNotOut(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	depth := func() Depth {
		t.Helper()
		d, err := s.outbox.Depth(t.Context(), s.db.Pool)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := depth(); d != (Depth{}) {
		t.Fatalf("an empty outbox: %+v", d)
	}
	late := s.begin()
	late.add("t", "late", "v")
	for _, key := range []string{"a", "b", "c"} {
		s.add("t", key, "v")
	}
	s.add("missing", "k", "v")
	if d := depth(); d.Rows != 4 || d.Oldest <= 0 || d.AtLeast || d.Held != 0 {
		t.Fatalf("before any relay: %+v", d)
	}
	r := s.relay(RelayConfig{Slices: 3})
	s.drain(r)
	if d := depth(); d.Rows != 0 || d.Oldest != 0 || d.Held != 1 || d.OldestHeld <= 0 {
		t.Fatalf("after the relay: %+v", d)
	}
	late.commit()
	if d := depth(); d.Rows != 1 || d.Oldest <= 0 {
		t.Fatalf("with a late commit: %+v", d)
	}
	s.drain(r)
	s.exec(`insert into claimq.outbox (bucket, id, topic) select 5, gen_random_uuid(), 't' from generate_series(1, $1)`, depthLimit+50)
	if d := depth(); d.Rows < depthLimit || !d.AtLeast {
		t.Fatalf("with more than is counted: %+v", d)
	}
}

// A window that is half out counts as half.
func TestDepthCountsTheRestOfAnOpenWindow(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	r.maxList = 3
	for range 10 {
		s.add("t", "k", "v")
	}
	s.round(r)
	d, err := s.outbox.Depth(t.Context(), s.db.Pool)
	if err != nil || d.Rows != 7 {
		t.Fatalf("after 3 of 10: %+v, %v", d, err)
	}
}

func TestStatsTellHowARelayStands(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	if stats := r.Stats(); stats != (Stats{}) {
		t.Fatalf("before the start: %+v", stats)
	}
	s.add("t", "k", "v")
	s.add("missing", "k", "v")
	s.drain(r)
	stats := r.Stats()
	if stats.Published != 1 || stats.SetAside != 1 || stats.Leased != 1 || stats.Pending != 0 || stats.Lag > time.Minute {
		t.Fatalf("after a round: %+v", stats)
	}
	s.createTopic("missing", 1, nil)
	s.dueNow(r)
	s.drain(r)
	if stats := r.Stats(); stats.Published != 2 || stats.Retried != 1 {
		t.Fatalf("after the retry: %+v", stats)
	}
}
