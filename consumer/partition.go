package consumer

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// partitionKey names a partition as Kafka does.
type partitionKey struct {
	topic     string
	partition int32
}

// A partition is one assignment of one partition to this worker, from taking
// ownership to losing it. An assignment of the same partition later is another
// value: whatever still runs for this one is void, however late it comes back.
type partition struct {
	partitionKey
	number      int32 // the topic's number in claimq.topics
	topicID     [16]byte
	epoch       int64
	token       uuid.UUID
	leaderEpoch atomic.Int32

	// gone: nothing may be done for it any more. Set once.
	gone atomic.Bool
	// halted: Kafka does not have what is to be read next. Nothing that the client
	// returns for it is handled, wherever it has gone to by itself.
	halted atomic.Bool

	// Guarded by the scheduler's lock.
	track     tracker
	strands   []*strand
	buffered  int   // bytes handed to the scheduler and not yet finished
	paused    bool  // fetching is paused because of buffered
	running   int   // batches that hold something of it
	revoking  bool  // no new batches
	written   int64 // the newest position that Postgres has acknowledged
	highWater int64 // Kafka's, as of the last fetch; -1: not known
	// stillSince is since when there has been work in hand and the position has not
	// moved; zero when there is none.
	stillSince time.Time
}

func newPartition(key partitionKey, number int32, position int64, strands int) *partition {
	p := &partition{partitionKey: key, number: number, written: position, highWater: -1}
	p.leaderEpoch.Store(-1)
	p.track.position = position
	for i := range strands {
		p.strands = append(p.strands, &strand{partition: p, number: i})
	}
	return p
}

// A strand is the part of a partition that is handled in order, one batch at a
// time: the messages whose order keys share a remainder. Strands are what batches
// are made of, so that a handler which hangs holds the strands of its batch and
// nothing else.
type strand struct {
	partition *partition
	number    int
	waiting   []*task
	busy      bool // in a batch
	queued    bool // in the scheduler's ready list
	alone     bool // was slow the last time: its next batch is its own
}
