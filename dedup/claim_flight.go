package dedup

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/claimq/claimq/internal/pgarray"
)

// A Flight is a set of claims whose statements travel in a caller's batch: the
// form for code that wants its own statements in the same round trip, as the
// consumer does. Call Store.Queue, send the batch, then Resolve.
type Flight struct {
	store    *Store
	phase    *phase
	requests []Request
	digests  []uuid.UUID
	columns  columns
	copies   []int
	claimed  map[uuid.UUID]bool // inserted into the first of the phase's segments
	copied   map[uuid.UUID]bool // and into the second, in a roll's middle phase
}

// Queue adds the claims of all requests to b, which must run in a READ COMMITTED
// transaction. When the segments have rolled since the last time, the batch fails
// with SQLSTATE CQ002 and nothing has been claimed: roll back, call Refresh, and
// begin again. Requests must carry their queue's number. The caller protects the
// plans: a plan made on an empty segment must not become a sequential scan.
func (s *Store) Queue(ctx context.Context, db Querier, b *pgx.Batch, requests []Request) (*Flight, error) {
	p := s.phase.Load()
	if p == nil {
		var err error
		if p, err = s.readPhase(ctx, db); err != nil {
			return nil, err
		}
	}
	f := s.plan(p, requests)
	b.Queue(s.sql.lockPhase, p.lockKey())
	b.Queue(s.sql.assertPhase, p.number)
	f.queueInsert(b)
	return f, nil
}

// Refresh reads the phase of the segments again, after a CQ002.
func (s *Store) Refresh(ctx context.Context, db Querier) error {
	_, err := s.readPhase(ctx, db)
	return err
}

func (s *Store) plan(p *phase, requests []Request) *Flight {
	f := &Flight{
		store: s, phase: p, requests: requests,
		digests: make([]uuid.UUID, len(requests)),
		claimed: make(map[uuid.UUID]bool, len(requests)),
	}
	if len(p.inserts) > 1 {
		f.copied = make(map[uuid.UUID]bool, len(requests))
	}
	for i := range requests {
		if f.digests[i] = requests[i].Digest; f.digests[i] == uuid.Nil {
			f.digests[i] = requests[i].Identity.Digest()
		}
	}
	f.columns, f.copies = fold(requests, f.digests, time.Now(), s.keepShown)
	return f
}

func (f *Flight) queueInsert(b *pgx.Batch) {
	b.Queue(f.store.sql.insertSQL(f.phase), f.columns.args()...).Query(func(rows pgx.Rows) error {
		return scanIDs(rows, f.claimed)
	})
	if len(f.phase.inserts) > 1 {
		b.Queue(f.store.sql.copyNext[f.phase.inserts[0]][f.phase.inserts[1]], pgarray.UUIDs(f.columns.ids)).Query(func(rows pgx.Rows) error {
			return scanIDs(rows, f.copied)
		})
	}
}

// resume takes over what an earlier flight of the same transaction, phase and
// requests has claimed: its rows are the transaction's own, and no duplicates.
func (f *Flight) resume(earlier *Flight) {
	if earlier == nil {
		return
	}
	maps.Copy(f.claimed, earlier.claimed)
	if f.copied != nil {
		maps.Copy(f.copied, earlier.copied)
	}
}

// scanIDs adds the ids of rows to a set.
func scanIDs(rows pgx.Rows, set map[uuid.UUID]bool) error {
	var id pgtype.UUID // scanning into a uuid.UUID goes by way of text
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		set[id.Bytes] = true
		return nil
	})
	return err
}

// yield gives up the ids that this flight has inserted into the segment that is
// being left but not into the next one, and returns them. A claimer that is a phase
// ahead looked at the first before this flight's row was there, inserted into the
// second and committed: the claim is its own. So in the middle phase an id is
// claimed by whoever gets it into both: against claimers of the phase before the
// first segment decides, against those of the phase after the second.
func (f *Flight) yield() []uuid.UUID {
	if len(f.phase.inserts) == 1 {
		return nil
	}
	var lost []uuid.UUID
	for _, id := range f.columns.ids {
		if f.claimed[id] && !f.copied[id] {
			lost = append(lost, id)
			delete(f.claimed, id)
		}
	}
	return lost
}

// Digest returns the digest of request i.
func (f *Flight) Digest(i int) uuid.UUID { return f.digests[i] }

// FirstCopy returns the index of the first request with the id of request i.
func (f *Flight) FirstCopy(i int) int { return f.copies[i] }

// Resolve returns the outcome of each request. It asks the database once more
// when ids were known already, and not at all otherwise. ErrUndecided: begin again.
func (f *Flight) Resolve(ctx context.Context, tx BatchSender) ([]Outcome, error) {
	known, err := f.lookup(ctx, tx)
	if err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(f.requests))
	for i := range f.requests {
		digest := f.digests[i]
		switch {
		case f.claimed[digest] && f.copies[i] == i:
			outcomes[i] = Outcome{Kind: Claimed}
		case f.claimed[digest]:
			first := &f.requests[f.copies[i]]
			outcomes[i] = judge(&f.requests[i].Identity, &sighted{
				fingerprint: first.Identity.Fingerprint, version: first.Identity.FingerprintVersion,
				first: first.Seen, recordAt: first.RecordAt,
			})
		default:
			row, ok := known[digest]
			if !ok {
				return nil, ErrUndecided
			}
			outcomes[i] = judge(&f.requests[i].Identity, row)
		}
	}
	return outcomes, nil
}

// Unclaim adds a statement to b that takes back claims which this flight made and
// whose handlers failed: no attempt that failed leaves a claim.
func (f *Flight) Unclaim(b *pgx.Batch, digests []uuid.UUID) {
	if len(digests) == 0 {
		return
	}
	for _, slot := range f.phase.inserts {
		b.Queue(f.store.sql.unclaim[slot], pgarray.UUIDs(digests))
	}
}

// sighted is what a claim's row tells of its first copy.
type sighted struct {
	fingerprint         uuid.UUID
	version             int16
	first               *Sighting
	recordAt, claimedAt time.Time
}

// judge compares a copy with the first. Fingerprints made under different
// versions, or not made, say nothing about one another.
func judge(copied *Identity, first *sighted) Outcome {
	o := Outcome{Kind: Duplicate, First: first.first, RecordAt: first.recordAt, ClaimedAt: first.claimedAt}
	if copied.FingerprintVersion != 0 && copied.FingerprintVersion == first.version && copied.Fingerprint != first.fingerprint {
		o.Kind = Conflict
	}
	return o
}

func (f *Flight) lookup(ctx context.Context, tx BatchSender) (map[uuid.UUID]*sighted, error) {
	lost := f.yield()
	if len(f.claimed) == len(f.columns.ids) {
		return nil, nil //nolint:nilnil // nothing is known already
	}
	missing := make([]uuid.UUID, 0, len(f.columns.ids)-len(f.claimed))
	for _, id := range f.columns.ids {
		if !f.claimed[id] {
			missing = append(missing, id)
		}
	}
	known := make(map[uuid.UUID]*sighted, len(missing))
	batch := &pgx.Batch{}
	batch.Queue(sqlProtect)
	if len(lost) > 0 { // so that nobody ever finds two rows of one id that tell different firsts
		batch.Queue(f.store.sql.unclaim[f.phase.inserts[0]], pgarray.UUIDs(lost))
	}
	// The older segments last: a row there is the first copy's, whatever stands in
	// the newer ones.
	for _, slot := range slices.Concat(f.phase.inserts, f.phase.lookups) {
		batch.Queue(f.store.sql.lookup[slot], pgarray.UUIDs(missing)).Query(func(rows pgx.Rows) error {
			return scanSighted(rows, known)
		})
	}
	batch.Queue(sqlUnprotect)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("dedup: look up %d known ids: %w", len(missing), err)
	}
	return known, nil
}

func scanSighted(rows pgx.Rows, known map[uuid.UUID]*sighted) error {
	var (
		id, fingerprint  pgtype.UUID
		row              sighted
		topic, partition *int32
		offset           *int64
	)
	_, err := pgx.ForEachRow(rows,
		[]any{&id, &fingerprint, &row.version, &topic, &partition, &offset, &row.recordAt, &row.claimedAt},
		func() error {
			found := row
			found.fingerprint = fingerprint.Bytes
			if topic != nil && partition != nil && offset != nil {
				found.first = &Sighting{Topic: *topic, Partition: *partition, Offset: *offset}
			}
			known[id.Bytes] = &found
			return nil
		})
	return err
}
