package consumer

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
)

// replayedDone are the letters of replayed items that need nothing any more: they
// were processed, or their id turned out to be claimed. An item has its letter's id,
// also in a queue without claims, where no letter is found by its id.
func (a *attempt) replayedDone() (letters []uuid.UUID) {
	for _, t := range a.w.tasks {
		if t.item == nil || t.item.Kind != delayq.Replay {
			continue
		}
		switch t.verdict.fate {
		case succeeded, skipped, duplicate:
			letters = append(letters, t.item.ID)
		default:
		}
	}
	return letters
}

// queueOvertaken marks dead letters that a message of this batch has gone past in
// its order key.
func (a *attempt) queueOvertaken(b *pgx.Batch) {
	newest := map[uuid.UUID]int64{}
	var keys []uuid.UUID
	for _, t := range a.w.tasks {
		if t.verdict.fate != succeeded || t.orderKey == uuid.Nil {
			continue
		}
		at := int64(dlq.NewestPosition)
		if t.item != nil {
			at = t.item.OrderPos
		}
		if _, met := newest[t.orderKey]; !met {
			keys = append(keys, t.orderKey)
		}
		newest[t.orderKey] = max(newest[t.orderKey], at)
	}
	positions := make([]int64, len(keys))
	for i, key := range keys {
		positions[i] = newest[key]
	}
	a.c.letters.Overtaken(b, a.c.queue, keys, positions)
}
