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

// queueOvertaken marks dead letters that messages of this batch have gone past in
// their order key. It belongs before the batch's own letters: of those, overtakenHere
// knows which message came after which.
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

// queueOvertakenHere marks letters of this batch behind which, in it, a message of
// their order key has succeeded. It belongs behind the letters.
func (a *attempt) queueOvertakenHere(b *pgx.Batch) {
	died := map[uuid.UUID][]uuid.UUID{} // by order key, nothing has succeeded behind them yet
	var overtaken []uuid.UUID
	for _, t := range a.w.tasks {
		switch {
		case t.orderKey == uuid.Nil:
		case t.verdict.fate == dead && t.item != nil:
			died[t.orderKey] = append(died[t.orderKey], t.item.ID)
		case t.verdict.fate == dead:
			s := t.source()
			id := dlq.SourceID(a.c.queue, dlq.Source{Topic: s.Topic, Partition: s.Partition, Offset: s.Offset})
			died[t.orderKey] = append(died[t.orderKey], id)
		case t.verdict.fate == succeeded:
			overtaken = append(overtaken, died[t.orderKey]...)
			delete(died, t.orderKey)
		}
	}
	a.c.letters.OvertakenLetters(b, overtaken)
}
