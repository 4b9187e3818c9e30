package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/claimq/claimq/internal/sqlstate"
)

// A sliceRelay publishes one slice of the outbox. One goroutine uses it.
type sliceRelay struct {
	*Relay

	index     int16
	token     uuid.UUID // whose the lease is; never another's, so a lease that nobody took stays ours
	wake      chan struct{}
	publisher *publisher

	// What follows is what the newest own row says. It decides nothing: each
	// transaction that moves the place is refused unless the row is still the one
	// in force, and each window begins with what the row says then.
	leased    bool
	place     placeRow
	renewedAt time.Time

	holds      bool      // rows are set aside, as of the newest window
	heldLooked time.Time // when those that are due were last looked for
}

// A placeRow is a row of relay_windows.
type placeRow struct {
	id          int64
	done, until pgtype.Text
	after       int64
	half        bool // until stands in the row, and is not only the snapshot just taken
}

// written is the row as it stands once it is in the table.
func (p placeRow) written() placeRow {
	p.half = p.until.Valid
	return p
}

func newSliceRelay(r *Relay, index int) *sliceRelay {
	return &sliceRelay{Relay: r, index: int16(index), token: uuid.New(), wake: make(chan struct{}, 1)} //nolint:gosec // below 64
}

// from and to are the slice's buckets, half open; the twin of bucket * slices / 64.
func (s *sliceRelay) from() int {
	return (int(s.index)*buckets + s.config.Slices - 1) / s.config.Slices
}

func (s *sliceRelay) to() int {
	return (int(s.index+1)*buckets + s.config.Slices - 1) / s.config.Slices
}

// run does rounds until it is told to stop. Work follows work at once; an idle
// relay looks less and less often, and an error makes it wait.
func (s *sliceRelay) run(ctx context.Context, stopping <-chan struct{}) {
	defer s.end()
	var pause, trouble time.Duration
	for {
		did, err := s.runOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			trouble = min(max(2*trouble, 100*time.Millisecond), 5*time.Second)
			pause = trouble/2 + rand.N(trouble/2+1) //nolint:gosec // spreads retries, guards nothing
			s.troubled(err, pause)
		case did.standby > 0:
			trouble, pause = 0, min(s.config.Lease/4, time.Second)
		case did.published+did.retried+did.setAside > 0:
			trouble, pause = 0, 0
		default:
			trouble, pause = 0, min(max(2*pause, 5*time.Millisecond), s.config.IdlePoll)
		}
		timer := time.NewTimer(pause)
		wake := s.wake
		if err != nil {
			wake = nil // what is woken for does not end the trouble
		}
		select {
		case <-stopping:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		case <-wake:
			timer.Stop()
			pause = 0
		case <-timer.C:
		}
	}
}

func (s *sliceRelay) troubled(err error, pause time.Duration) {
	s.stats.failed(err)
	level := s.config.Logger.Warn
	if errors.Is(err, errLeaseLost) {
		level = s.config.Logger.Info
	}
	level("the outbox relay goes back to its last place", "slice", s.index, "instance", s.config.Instance, "error", err, "again_in", pause)
}

// end gives the lease back, so that the next relay need not wait for its end, and
// closes the producer, with whatever it still holds. Not after a lost lease, whose
// row is another's.
func (s *sliceRelay) end() {
	s.discard()
	if !s.leased {
		return
	}
	s.setLeased(false)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	// Refused, or the database is away: the lease ends by itself.
	place := s.place
	if !place.half {
		place.until = pgtype.Text{}
	}
	_, _ = s.move(ctx, s.pool, place, 0)
}

func (s *sliceRelay) discard() {
	if s.publisher != nil {
		s.publisher.close()
		s.publisher = nil
	}
}

// errLeaseLost says that the slice is another relay's, or that the server is no
// longer the one that the place was read from.
var errLeaseLost = errors.New("outbox: the slice is another relay's, or the server has changed")

// runOnce is one round: take the lease if it is free, try what was set aside and
// is due, publish one window. After an error nothing that the slice remembers is
// used again, and its producer is thrown away: some of what it sent may be out,
// some may yet arrive, and all of it is sent again from the last place.
func (s *sliceRelay) runOnce(ctx context.Context) (did result, err error) {
	defer func() {
		if err == nil {
			return
		}
		s.discard()
		switch sqlstate.Code(err) {
		case sqlstate.LeaseLost, sqlstate.IncarnationChanged:
			s.setLeased(false)
			err = errors.Join(errLeaseLost, err)
		}
	}()
	if !s.leased {
		if err := s.take(ctx); err != nil {
			return did, err
		}
		if !s.leased {
			did.standby = 1
			return did, nil
		}
	}
	if s.publisher == nil {
		if s.publisher, err = newPublisher(s.kafka); err != nil {
			return did, err
		}
	}
	did.retried, err = s.retryHeld(ctx)
	s.stats.retried(did.retried)
	if err != nil {
		return did, err
	}
	err = s.window(ctx, &did)
	return did, err
}

// take asks for the lease.
func (s *sliceRelay) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var place placeRow
	err := s.pool.QueryRow(ctx, s.sql.take, s.config.Slices, s.index, s.token, s.config.Instance, s.config.Lease).
		Scan(&place.id, &place.done, &place.until, &place.after, nil)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	s.place, s.renewedAt = place.written(), time.Now()
	s.setLeased(true)
	s.config.Logger.Info("the outbox relay has taken a slice", "slice", s.index, "slices", s.config.Slices, "instance", s.config.Instance)
	return nil
}

func (s *sliceRelay) setLeased(leased bool) {
	s.leased = leased
	s.stats.leased(s.index, leased)
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// move writes the slice's place, which also renews the lease, and returns the new
// row.
func (s *sliceRelay) move(ctx context.Context, db querier, to placeRow, lease time.Duration) (placeRow, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err := db.QueryRow(ctx, s.sql.advance, s.config.Slices, s.index, s.token, s.place.id, to.done, to.until, to.after, lease).
		Scan(&to.id)
	return to, err
}

// advance moves the place outside any other transaction.
func (s *sliceRelay) advance(ctx context.Context, to placeRow) error {
	to, err := s.move(ctx, s.pool, to, s.config.Lease)
	if err != nil {
		return err
	}
	s.place, s.renewedAt = to.written(), time.Now()
	return nil
}

var errNoAnswer = errors.New("outbox: the brokers have not answered within ProduceTimeout; what was sent is sent again")

// waiting makes a waiter that renews the lease while it waits.
func (s *sliceRelay) waiting(ctx context.Context) waiter {
	return func(done <-chan struct{}) error {
		limit := time.NewTimer(s.config.ProduceTimeout)
		defer limit.Stop()
		renew := time.NewTicker(s.config.Lease / 3)
		defer renew.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			case <-limit.C:
				return errNoAnswer
			case <-renew.C:
				if err := s.advance(ctx, s.place); err != nil {
					return err
				}
			}
		}
	}
}
