package outbox

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// commitEvery is how often the place is written while a window of many pages is
// published: what is sent again after a crash.
const commitEvery = 250 * time.Millisecond

// window publishes what became visible since the slice's place, or goes on with a
// window that is half done. The place moves when all up to it is answered.
func (s *sliceRelay) window(ctx context.Context, did *result) error {
	places, holds, err := s.list(ctx)
	if err != nil {
		return err
	}
	if err := s.at(stepListed); err != nil {
		return err
	}
	s.stats.pending(s.index, len(places))
	end := placeRow{done: s.place.until} // the whole window is out
	if len(places) == s.maxList {
		end = s.place // the list was cut: the window goes on behind its last row
		end.after = places[len(places)-1].seq
	}
	if len(places) == 0 {
		if s.place.half {
			// What was left of a window says nothing about what came after it.
			if err := s.advance(ctx, end); err != nil {
				return err
			}
			return s.window(ctx, did)
		}
		s.stats.upToDate(s.index)
		if time.Since(s.renewedAt) < s.config.Lease/3 {
			return nil // the next window begins where this one did, and finds as little
		}
		return s.advance(ctx, end)
	}
	return s.publishAll(ctx, did, places, end, holds)
}

// publishAll publishes the places' rows page by page, reading one page while the
// one before it is on its way.
func (s *sliceRelay) publishAll(ctx context.Context, did *result, places []place, end placeRow, holds bool) error {
	list := pages(places, s.maxPage, pageBytes)
	next := s.read(ctx, list[0], holds)
	defer func() { _, _ = next.wait() }() // it was read for nothing
	committed, left := time.Now(), len(places)
	for i, page := range list {
		rows, err := next.wait()
		if err != nil {
			return err
		}
		if err := s.at(stepRead); err != nil {
			return err
		}
		last := i == len(list)-1
		if !last {
			next = s.read(ctx, list[i+1], holds)
		}
		refused, err := s.publisher.publish(ctx, s.waiting(ctx), rows)
		if err != nil {
			return err
		}
		if err := s.at(stepPublished); err != nil {
			return err
		}
		place := s.place
		place.after = page[len(page)-1].seq
		if last {
			place = end
		}
		switch {
		case len(refused) > 0:
			committed = time.Now()
			if err := s.setAside(ctx, page, refused, place); err != nil {
				return err
			}
			// The page that is being read was not compared with these.
			if holds = true; !last {
				_, _ = next.wait() // read again below
				next = s.read(ctx, list[i+1], holds)
			}
		case last || time.Since(committed) >= s.commitEvery:
			committed = time.Now()
			if err := s.advance(ctx, place); err != nil {
				return err
			}
		}
		if err := s.at(stepAdvanced); err != nil {
			return err
		}
		did.published += len(rows) - len(refused)
		did.setAside += len(refused)
		s.stats.published(len(rows)-len(refused), len(refused))
		left -= len(page)
		s.stats.pending(s.index, left)
	}
	if len(places) < s.maxList {
		s.stats.upToDate(s.index)
	}
	return nil
}

// local sets what holds for a transaction of the relay.
func local(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, sqlLocal, strconv.FormatInt(queryTimeout.Milliseconds(), 10))
	return err
}

// inTx runs do in a READ COMMITTED transaction with the relay's settings.
func (s *sliceRelay) inTx(ctx context.Context, do func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := local(ctx, tx); err != nil {
			return err
		}
		return do(ctx, tx)
	})
}

// list opens the window and finds its rows. Place and snapshot come from the
// row in force; nothing that the slice remembers goes into them.
func (s *sliceRelay) list(ctx context.Context) (places []place, holds bool, err error) {
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var now placeRow
		err := tx.QueryRow(ctx, s.sql.open, s.config.Slices, s.index, s.token).
			Scan(&now.id, &now.done, &now.until, &now.after, &now.half, &holds)
		if err != nil {
			return err
		}
		s.place, s.holds = now, holds
		// A statement of its own: its snapshot is newer than until.
		rows, err := tx.Query(ctx, s.sql.list, now.done, now.until, now.after, s.from(), s.to(), s.maxList)
		if err != nil {
			return err
		}
		places, err = pgx.CollectRows(rows, func(rows pgx.CollectableRow) (p place, err error) {
			err = rows.Scan(&p.slot, &p.tid, &p.seq, &p.bytes)
			return p, err
		})
		return err
	})
	return places, holds, err
}

// A reading is a page that is being read.
type reading struct {
	done chan struct{}
	rows []outRow
	err  error
}

func (r *reading) wait() ([]outRow, error) {
	<-r.done
	return r.rows, r.err
}

// read begins to read a page.
func (s *sliceRelay) read(ctx context.Context, page []place, holds bool) *reading {
	r := &reading{done: make(chan struct{})}
	statement := s.sql.fetch
	if holds {
		statement = s.sql.fetchHeld
	}
	go func() {
		defer close(r.done)
		r.err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			bySlot := tids(page)
			rows, err := tx.Query(ctx, statement, bySlot[0], bySlot[1], bySlot[2])
			if err != nil {
				return err
			}
			r.rows, err = pgx.CollectRows(rows, scanOutRow)
			if err != nil {
				return err
			}
			return verify(page, r.rows)
		})
	}()
	return r
}

// setAside copies refused rows out of the way and moves the place beyond them, in
// one transaction: a row is never in neither.
func (s *sliceRelay) setAside(ctx context.Context, page []place, refused []refusal, to placeRow) error {
	wanted := make(map[int64]bool, len(refused))
	_, seqs, scopes, reasons, attempts := columns(refused)
	for _, seq := range seqs {
		wanted[seq] = true
	}
	var lying []place
	for _, p := range page {
		if wanted[p.seq] {
			lying = append(lying, p)
		}
	}
	bySlot := tids(lying)
	var moved placeRow
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		if _, err = tx.Exec(ctx, s.sql.setAside, bySlot[0], bySlot[1], bySlot[2],
			seqs, scopes, reasons, s.config.retryDelay(1), attempts); err != nil {
			return err
		}
		moved, err = s.move(ctx, tx, to, s.config.Lease)
		return err
	})
	if err != nil {
		return err
	}
	s.place, s.renewedAt = moved.written(), time.Now()
	s.logRefusals(refused)
	return nil
}

// logRefusals tells what was refused, once for each topic and reason: a missing
// topic can set thousands aside.
func (s *sliceRelay) logRefusals(refused []refusal) {
	type kind struct{ topic, scope, reason string }
	counts := map[kind]int{}
	for _, r := range refused {
		if r.tried {
			counts[kind{r.row.topic, r.scope, r.reason}]++
		}
	}
	for k, n := range counts {
		s.config.Logger.Warn("records of the outbox cannot be sent and are set aside",
			"topic", k.topic, "scope", k.scope, "reason", k.reason, "records", n, "instance", s.config.Instance)
	}
}

// columns lays refusals out for a statement; attempts counts the failed one.
func columns(refused []refusal) (in []int16, seqs []int64, scopes, reasons []string, attempts []int32) {
	for _, r := range refused {
		in = append(in, r.row.bucket)
		seqs = append(seqs, r.row.seq)
		scopes = append(scopes, r.scope)
		reasons = append(reasons, r.reason)
		count := r.row.attempts
		if r.tried {
			count++
		}
		attempts = append(attempts, int32(min(count, 1<<30))) //nolint:gosec // bounded
	}
	return in, seqs, scopes, reasons, attempts
}
