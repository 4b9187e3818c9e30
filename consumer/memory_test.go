package consumer_test

import (
	"strconv"
	"testing"
)

// A queue that was idle for half an hour finds its newest row carried over and the
// slot emptied: that is no lost history, and nothing is read again for it.
func TestAnIdleQueueDoesNotTakeRotationForLostHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(r.messages(0, 0, 10)...)
	r.start(r.config())
	eventually(t, "the first messages are done", func() bool { return r.outcome("processed") == 10 })
	// What rotate_positions does to a slot, at once and to every slot.
	r.exec(`with kept as (select p.topic, p.partition, p.epoch, p.next_offset, p.leader_epoch, q.id
	                        from ` + r.db.Schema + `.queues q, ` + r.db.Schema + `.positions_of(q.id) p),
	             emptied as (delete from ` + r.db.Schema + `.positions)
	        insert into ` + r.db.Schema + `.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs)
	        select ` + r.db.Schema + `.position_slot(now()), gen_random_uuid(), id, array[topic], array[partition], array[epoch], array[next_offset], array[leader_epoch] from kept`)
	r.produce(r.messages(0, 10, 20)...)
	eventually(t, "the next messages are done", func() bool { return r.outcome("processed") == 20 })
	if n := r.metric("claimq_incarnation_changes_total", "", ""); n != 0 {
		t.Errorf("%d times the worker forgot everything, want 0", n)
	}
	if n := r.outcome("duplicate"); n != 0 {
		t.Errorf("%s messages were read again", strconv.Itoa(n))
	}
}

// When the positions really are behind what was acknowledged, everything is read
// again from where they stand.
func TestLostPositionsAreReadAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(r.messages(0, 0, 10)...)
	r.start(r.config())
	eventually(t, "the first messages are done", func() bool { return r.outcome("processed") == 10 })
	// A database that lost its newest transactions: positions, claims and effects.
	r.exec(`delete from ` + r.db.Schema + `.positions where 0 < any (offsets)`)
	r.exec(`delete from ` + r.db.Schema + `.claims`)
	r.exec(`delete from ` + r.db.Schema + `.effects`)
	r.produce(r.messages(0, 10, 20)...)
	eventually(t, "all messages are done again", func() bool {
		return r.count(`select count(distinct id) from %s.effects`) == 20
	})
	if n := r.count(`select count(*) from %s.effects`); n != 20 {
		t.Errorf("%d effects, want 20", n)
	}
	if n := r.metric("claimq_lost_history_messages_total", "", ""); n != 10 {
		t.Errorf("%d lost messages are reported, want 10", n)
	}
}
