package e2e

import (
	"testing"
)

// A partition that is added to a topic which is read from its end begins at its
// beginning: nothing in it was ever seen.
func TestANewPartitionUnderLatestLosesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.produce(100) // before the queue's time
	order := s.order("worker")
	order.Latest = true
	p := worker(t, order)
	eventually(t, "it owns the partition", func() bool { return s.owns(p) == 1 })
	if _, err := s.admin.UpdatePartitions(t.Context(), 3, s.topic); err != nil {
		t.Fatal(err)
	}
	before := s.made
	produceTo(t, s.brokers, s.topic, []int32{1, 2}, before, before+200) // at once: most likely before the worker knows of them
	s.made += 200
	eventually(t, "all that is in the new partitions has its effect", func() bool { return s.effects() >= 200 })
	if n := s.ask(`select count(*) from SCHEMA.effects where partition = 0`); n != 0 {
		t.Errorf("%d messages of before the queue's time were handled", n)
	}
	eventually(t, "it owns all three", func() bool { return s.owns(p) == 3 })
	s.waitPositions()
	if n := s.effects(); n != 200 {
		t.Errorf("%d effects, want 200", n)
	}
	p.stop()
}

// A topic that is deleted and created again under its name, while the worker runs,
// is another topic: its offsets begin at 0 again, and positions and sources of the
// old one must not be taken for its own.
func TestARecreatedTopicIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	order := s.order("worker")
	order.Latest = true // which is about the queue's beginning and no other topic's
	p := worker(t, order)
	eventually(t, "it owns the partitions", func() bool { return s.owns(p) == 2 })
	s.produce(100)
	s.waitDone()
	if _, err := s.admin.DeleteTopic(t.Context(), s.topic); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the topic is created again", func() bool {
		response, err := s.admin.CreateTopic(t.Context(), 2, 1, nil, s.topic)
		return err == nil && response.Err == nil
	})
	// Fewer than before, so that the old positions lie past the end; 20 are repeats.
	again := freshProducer(t, s.brokers)
	produce(t, again, s.topic, 80, 140)
	s.made = 140
	s.waitDone()
	if n := s.ask(`select count(*) from SCHEMA.topics`); n != 2 {
		t.Errorf("%d topic ids are known, want 2", n)
	}
	eventually(t, "the new topic's positions", func() bool {
		return s.ask(`select coalesce(sum(p.next_offset), 0) from SCHEMA.queues q, SCHEMA.positions_of(q.id) p
			where p.topic = (select max(id) from SCHEMA.topics)`) == 60
	})
	s.check()
	p.stop()

	// A restart does not fall back to the old id either.
	p = worker(t, s.order("next"))
	produce(t, again, s.topic, 140, 180)
	s.made = 180
	s.waitDone()
	s.check()
	p.stop()
}
