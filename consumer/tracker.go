package consumer

import "time"

// A tracker knows, for one partition, which of the offsets handed out are done,
// and so where its position stands: the next offset whose effect is not yet in
// Postgres. Work may end in any order; the position passes an offset only when
// everything before it is done (CASES C01). Offsets that Kafka never delivers
// (compaction, control records) hold nothing up, because only offsets that were
// handed out are waited for.
//
// A tracker is not safe for concurrent use; the scheduler's lock guards it.
type tracker struct {
	position int64         // everything below is in Postgres
	entries  []trackedWork // handed out and not yet passed by position, ascending
}

type trackedWork struct {
	offset int64
	at     time.Time // the record's own
	batch  *batch    // the batch that holds it now; nil: waiting or done
	done   bool
}

// add notes that offset has been handed out; at is its record's time.
func (t *tracker) add(offset int64, at time.Time) {
	t.entries = append(t.entries, trackedWork{offset: offset, at: at})
}

// hold notes which batch an offset is in, nil when it is put back.
func (t *tracker) hold(offset int64, b *batch) {
	if i, ok := t.find(offset); ok {
		t.entries[i].batch = b
	}
}

// with is the position that holds once b has committed: the prefix of what is
// done already and what b holds. Work that another batch has finished and not yet
// committed does not count, for it may still roll back.
func (t *tracker) with(b *batch) int64 {
	position := t.position
	for i := range t.entries {
		if e := &t.entries[i]; !e.done && (e.batch != b || b == nil) {
			break
		}
		position = t.entries[i].offset + 1
	}
	return position
}

// finish notes that an offset's effect has committed, moves the position, and
// reports whether it moved.
func (t *tracker) finish(offset int64) (moved bool) {
	i, ok := t.find(offset)
	if !ok {
		return false
	}
	t.entries[i].done, t.entries[i].batch = true, nil
	passed := 0
	for passed < len(t.entries) && t.entries[passed].done {
		t.position = t.entries[passed].offset + 1
		passed++
	}
	t.entries = t.entries[passed:]
	if len(t.entries) == 0 {
		t.entries = nil // let the backing array go: it has only moved forward so far
	}
	return passed > 0
}

// oldest returns the oldest offset that is not done and its record's time.
func (t *tracker) oldest() (offset int64, at time.Time, ok bool) {
	if len(t.entries) == 0 {
		return 0, time.Time{}, false
	}
	return t.entries[0].offset, t.entries[0].at, true
}

// find looks an offset up by bisection: entries ascend.
func (t *tracker) find(offset int64) (int, bool) {
	low, high := 0, len(t.entries)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if t.entries[middle].offset < offset {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, low < len(t.entries) && t.entries[low].offset == offset
}
