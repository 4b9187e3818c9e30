package dedup

import (
	"bytes"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/claimq/claimq/internal/pgarray"
)

// A Request asks for one id.
type Request struct {
	// Identity says what is asked for: scope, id and fingerprint.
	Identity Identity
	// Digest stands for the identity's own, for a message whose digest was kept and
	// whose rules may have changed since. Zero: Identity.Digest().
	Digest uuid.UUID
	// Queue is the queue's number in claimq.queues. Store.Claim looks it up by
	// Identity.Queue when it is 0.
	Queue int32
	// Seen is where in Kafka the message stands, nil outside Kafka.
	Seen *Sighting
	// RecordAt is the message's own time; zero means now. A claim is remembered by
	// this clock as well as by the database's, so that a backlog which is older than
	// the retention still finds its repeats.
	RecordAt time.Time
}

// columns are the parameters of one claim statement, sorted by id: two
// transactions that claim overlapping ids then wait for one another in one order
// and never deadlock (CASES C13).
type columns struct {
	ids          []uuid.UUID
	queues       []int32
	fingerprints []uuid.UUID
	versions     []int16
	topics       []int32 // -1: null
	partitions   []int32
	offsets      []int64
	recordAt     []time.Time
	shown        []string // "": null
}

// fold sorts the requests by digest and keeps the first copy of each id. copies
// maps every request to the index, among the requests, of its id's first copy.
func fold(requests []Request, digests []uuid.UUID, now time.Time, keepShown bool) (c columns, copies []int) {
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return bytes.Compare(digests[a][:], digests[b][:])
	})
	c = newColumns(len(requests))
	copies = make([]int, len(requests))
	first := -1
	for _, i := range order {
		if first >= 0 && digests[i] == digests[first] {
			copies[i] = first
			continue
		}
		first = i
		copies[i] = i
		c.add(&requests[i], digests[i], now, keepShown)
	}
	return c, copies
}

func newColumns(n int) columns {
	return columns{
		ids:          make([]uuid.UUID, 0, n),
		queues:       make([]int32, 0, n),
		fingerprints: make([]uuid.UUID, 0, n),
		versions:     make([]int16, 0, n),
		topics:       make([]int32, 0, n),
		partitions:   make([]int32, 0, n),
		offsets:      make([]int64, 0, n),
		recordAt:     make([]time.Time, 0, n),
		shown:        make([]string, 0, n),
	}
}

func (c *columns) add(r *Request, digest uuid.UUID, now time.Time, keepShown bool) {
	c.ids = append(c.ids, digest)
	c.queues = append(c.queues, r.Queue)
	c.fingerprints = append(c.fingerprints, r.Identity.Fingerprint)
	c.versions = append(c.versions, r.Identity.FingerprintVersion)
	seen := Sighting{Topic: -1, Partition: -1, Offset: -1}
	if r.Seen != nil {
		seen = *r.Seen
	}
	c.topics = append(c.topics, seen.Topic)
	c.partitions = append(c.partitions, seen.Partition)
	c.offsets = append(c.offsets, seen.Offset)
	at := r.RecordAt
	if at.IsZero() {
		at = now
	}
	c.recordAt = append(c.recordAt, at)
	shown := ""
	if keepShown {
		shown = r.Identity.Shown()
	}
	c.shown = append(c.shown, shown)
}

func (c *columns) args() []any {
	return []any{
		pgarray.UUIDs(c.ids), pgarray.Int4s(c.queues), pgarray.UUIDs(c.fingerprints), pgarray.Int2s(c.versions),
		pgarray.Int4s(c.topics), pgarray.Int4s(c.partitions), pgarray.Int8s(c.offsets), pgarray.Times(c.recordAt), pgarray.Texts(c.shown),
	}
}
