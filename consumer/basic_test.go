package consumer_test

import (
	"testing"
)

func TestEachIDTakesEffectOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	for partition := range int32(3) {
		r.produce(r.messages(partition, int(partition)*100, int(partition)*100+100)...)
	}
	// The same ids again, at other offsets and on another partition.
	r.produce(r.messages(2, 0, 50)...)
	r.start(r.config())
	eventually(t, "350 messages are done", func() bool {
		return r.outcome("processed")+r.outcome("duplicate") == 350
	})
	if n := r.count(`select count(*) from %s.effects`); n != 300 {
		t.Errorf("%d effects, want 300", n)
	}
	if n := r.count(`select count(distinct id) from %s.effects`); n != 300 {
		t.Errorf("%d distinct effects, want 300", n)
	}
	if d := r.outcome("duplicate"); d != 50 {
		t.Errorf("%d duplicates, want 50", d)
	}
	eventually(t, "positions are at the end", func() bool {
		return r.position(0) == 100 && r.position(1) == 100 && r.position(2) == 150
	})
}
