package consumer

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgarray"
)

// knownThings is what the first flight found about a batch besides its claims.
type knownThings struct {
	sources map[dedup.Sighting]bool   // delayed or dead already
	waiting map[uuid.UUID]fingerprint // ids in the delay queue
	letters map[uuid.UUID][]letter    // ids with open dead letters
	keys    map[uuid.UUID]bool        // order keys that something waits for
}

type fingerprint struct {
	sum     uuid.UUID
	version int16
}

// differs reports whether two fingerprints surely belong to different messages.
func (f fingerprint) differs(other fingerprint) bool {
	return f.version != 0 && f.version == other.version && f.sum != other.sum
}

type letter struct {
	id uuid.UUID
	fingerprint
}

// queueKnown asks, after the claims and in a statement of its own, what is known.
func (a *attempt) queueKnown(b *pgx.Batch) {
	a.known = knownThings{
		sources: map[dedup.Sighting]bool{}, waiting: map[uuid.UUID]fingerprint{},
		letters: map[uuid.UUID][]letter{}, keys: map[uuid.UUID]bool{},
	}
	var ranges sourceRanges
	claims, keys := []uuid.UUID{}, []uuid.UUID{}
	for _, t := range a.w.tasks {
		if a.flight != nil && t.unfit == nil {
			claims = append(claims, t.message.claim)
		}
		if t.strand == nil {
			continue
		}
		ranges.add(t.source())
		if t.orderKey != uuid.Nil {
			keys = append(keys, t.orderKey)
		}
	}
	b.Queue(a.c.sql.known, a.c.queue,
		pgarray.Int4s(ranges.topics), pgarray.Int4s(ranges.partitions), pgarray.Int8s(ranges.low), pgarray.Int8s(ranges.high),
		pgarray.UUIDs(claims), pgarray.UUIDs(keys)).
		Query(a.known.scan)
}

func (k *knownThings) scan(rows pgx.Rows) error {
	var (
		kind                int32
		topic, partition    *int32
		offset              *int64
		key, sum, letterID  *uuid.UUID
		fingerprintsVersion int16
	)
	targets := []any{&kind, &topic, &partition, &offset, &key, &sum, &fingerprintsVersion, &letterID}
	_, err := pgx.ForEachRow(rows, targets, func() error {
		first := fingerprint{version: fingerprintsVersion}
		if sum != nil {
			first.sum = *sum
		}
		switch kind {
		case 1, 2:
			k.sources[dedup.Sighting{Topic: *topic, Partition: *partition, Offset: *offset}] = true
		case 3:
			k.waiting[*key] = first
		case 4:
			k.letters[*key] = append(k.letters[*key], letter{id: *letterID, fingerprint: first})
		case 5:
			k.keys[*key] = true
		}
		return nil
	})
	return err
}

// sourceRanges are the lowest and highest offsets of each partition of a batch.
type sourceRanges struct {
	topics, partitions []int32
	low, high          []int64
}

func (r *sourceRanges) add(s *dedup.Sighting) {
	for i := range r.topics {
		if r.topics[i] == s.Topic && r.partitions[i] == s.Partition {
			r.low[i], r.high[i] = min(r.low[i], s.Offset), max(r.high[i], s.Offset)
			return
		}
	}
	r.topics, r.partitions = append(r.topics, s.Topic), append(r.partitions, s.Partition)
	r.low, r.high = append(r.low, s.Offset), append(r.high, s.Offset)
}
