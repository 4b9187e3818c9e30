package dedup

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/sqlstate"
)

// Waiting is what a run of a Roller has left to be done later, and why.
type Waiting string

const (
	// NotWaiting: nothing more is due.
	NotWaiting Waiting = ""
	// WaitingForClaimers: transactions of the phase before have not ended.
	WaitingForClaimers Waiting = "claimers"
	// WaitingForLock: somebody who does not go by phases, such as a dump, holds the
	// leaf that is to be emptied, or an id that is to be carried over.
	WaitingForLock Waiting = "lock"
	// WaitingForRoller: another process is at it.
	WaitingForRoller Waiting = "roller"
	// WaitingForTime: there was more to do than one run does.
	WaitingForTime Waiting = "time"
)

// A RollResult tells what a run of a Roller has done.
type RollResult struct {
	// Phase is the newest phase that was seen or made.
	Phase int64
	// Rolled counts segments that have become the only one inserted into, Forgotten
	// those that were emptied, ResultsForgotten slots of results that were.
	Rolled, Forgotten, ResultsForgotten int
	// Carried counts claims that were carried over because an open item needs them.
	Carried int64
	// Waiting says what is left.
	Waiting Waiting
}

// rollState is what a step decides by.
type rollState struct {
	phase      phase
	resultSlot int16
	held       bool    // claimers of another phase have not ended
	filled     []int16 // leaves that hold anything
	closed     []int16 // segments whose clocks have been taken
	due        bool    // the current segment is old enough

	resultsFilled, resultsClosed, resultsExpired []int16
	resultsDue                                   bool

	streams *streams // nil: not known, so nothing expires
}

// streams is where the queues stand that have lag.
type streams struct {
	queues []int32
	times  []time.Time
}

// runOnce makes the steps that are due and returns when none is left, or when the
// next one has to wait for longer than the Roller's patience. It writes nothing when
// nothing is due.
func (r *Roller) runOnce(ctx context.Context) (RollResult, error) {
	var result RollResult
	began := time.Now()
	streams := r.readStreams(ctx)
	for range rollSteps {
		var next *rollState
		made, moved := result, false // what a step has done counts when it is committed
		alone, err := r.inStep(ctx, func(ctx context.Context, tx pgx.Tx) error {
			state, err := r.readState(ctx, tx)
			if err != nil {
				return err
			}
			state.streams = streams
			next, made.Phase = state, state.phase.number
			if !state.held {
				moved, err = r.step(ctx, tx, state, &made)
			}
			return err
		})
		if err == nil {
			result = made
		}
		switch {
		case sqlstate.Code(err) == sqlstate.LockNotAvailable:
			result.Waiting = WaitingForLock
			return result, nil
		case err != nil:
			return result, fmt.Errorf("dedup: roll the claim segments: %w", err)
		case !alone:
			result.Waiting = WaitingForRoller
			return result, nil
		case next.held:
			if drained, err := r.drain(ctx, next.phase.number, began.Add(r.patience)); err != nil || !drained {
				result.Waiting = WaitingForClaimers
				return result, err
			}
		case !moved:
			return result, nil
		}
	}
	result.Waiting = WaitingForTime
	return result, nil
}

func (r *Roller) readState(ctx context.Context, tx pgx.Tx) (*rollState, error) {
	var s rollState
	err := tx.QueryRow(ctx, r.sql.state).Scan(
		&s.phase.number, &s.phase.inserts, &s.phase.lookups, &s.resultSlot, &s.held, &s.filled, &s.closed, &s.due,
		&s.resultsFilled, &s.resultsClosed, &s.resultsExpired, &s.resultsDue)
	if err != nil {
		return nil, fmt.Errorf("read how the segments stand: %w", err)
	}
	return &s, nil
}

// drain waits from outside until the claimers of phases before this one have gone.
func (r *Roller) drain(ctx context.Context, phase int64, until time.Time) (bool, error) {
	for pause := rollPollFirst; ; pause = min(2*pause, r.pollMax) {
		var held bool
		if err := r.pool.QueryRow(ctx, r.sql.held, phase).Scan(&held); err != nil {
			return false, fmt.Errorf("dedup: look whether claimers of an older phase have gone: %w", err)
		}
		if !held {
			return true, nil
		}
		if time.Now().After(until) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// step makes the first step that is due, when all claimers are of the phase in
// force, and tells whether there was one. The order keeps the ring short: what a
// phase has let go is emptied before another is begun.
func (r *Roller) step(ctx context.Context, tx pgx.Tx, s *rollState, result *RollResult) (bool, error) {
	p := &s.phase
	if len(p.inserts) == 2 {
		return true, r.leave(ctx, tx, s, result)
	}
	for _, slot := range s.filled {
		if slot != p.inserts[0] && !slices.Contains(p.lookups, slot) {
			return true, r.forget(ctx, tx, slot, p, result)
		}
	}
	for _, slot := range p.lookups {
		if !slices.Contains(s.closed, slot) {
			return true, r.close(ctx, tx, slot)
		}
	}
	if len(p.lookups) > 0 {
		expired, err := r.expired(ctx, tx, p.lookups[0], s.streams)
		if err != nil {
			return false, err
		}
		if expired {
			return true, r.drop(ctx, tx, s, result)
		}
	}
	if s.due && len(p.lookups) <= 1 && slices.Contains(s.filled, p.inserts[0]) {
		return true, r.enter(ctx, tx, s, result)
	}
	return r.stepResults(ctx, tx, s, result)
}

// put brings the next phase into force.
func (r *Roller) put(ctx context.Context, tx pgx.Tx, s *rollState, inserts, lookups []int16, resultSlot int16, result *RollResult) error {
	if lookups == nil {
		lookups = []int16{}
	}
	next := s.phase.number + 1
	if _, err := tx.Exec(ctx, r.sql.phase, next, inserts, lookups, resultSlot); err != nil {
		return fmt.Errorf("begin phase %d: %w", next, err)
	}
	result.Phase = next
	return nil
}

// enter begins a roll: insert into the current segment and the next. Of the segments
// that are out of force all are empty here.
func (r *Roller) enter(ctx context.Context, tx pgx.Tx, s *rollState, result *RollResult) error {
	current := s.phase.inserts[0]
	next := (current + 1) % ringSize
	for slices.Contains(s.phase.lookups, next) {
		next = (next + 1) % ringSize
	}
	return r.put(ctx, tx, s, []int16{current, next}, s.phase.lookups, s.resultSlot, result)
}

// leave ends a roll: insert into the next segment, look the one before up. Until the
// claimers of the middle phase have gone, those still insert into both.
func (r *Roller) leave(ctx context.Context, tx pgx.Tx, s *rollState, result *RollResult) error {
	left, next := s.phase.inserts[0], s.phase.inserts[1]
	if err := r.put(ctx, tx, s, []int16{next}, append(slices.Clone(s.phase.lookups), left), s.resultSlot, result); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, r.sql.opened, next); err != nil {
		return fmt.Errorf("open segment %d: %w", next, err)
	}
	result.Rolled++
	return nil
}

// close takes the clocks of a segment that nobody inserts into any more.
func (r *Roller) close(ctx context.Context, tx pgx.Tx, slot int16) error {
	for _, statement := range []string{r.sql.resetClocks, r.sql.clocks[slot], r.sql.closed} {
		args := []any{slot}
		if statement == r.sql.clocks[slot] {
			args = nil
		}
		if _, err := tx.Exec(ctx, statement, args...); err != nil {
			return fmt.Errorf("close segment %d: %w", slot, err)
		}
	}
	return nil
}

// readStreams asks where the streams stand, before any step: no transaction waits
// for the answer.
func (r *Roller) readStreams(ctx context.Context) *streams {
	var s streams
	if r.config.StreamTime == nil {
		return &s
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	stand, err := r.config.StreamTime(ctx)
	if err != nil {
		r.config.Logger.LogAttrs(ctx, slog.LevelWarn, "where the streams stand is not known, so no claims are forgotten this time", slog.Any("error", err))
		return nil
	}
	for queue, at := range stand {
		s.queues, s.times = append(s.queues, queue), append(s.times, at)
	}
	return &s
}

func (r *Roller) expired(ctx context.Context, tx pgx.Tx, slot int16, s *streams) (expired bool, err error) {
	if s == nil {
		return false, nil
	}
	if err := tx.QueryRow(ctx, r.sql.expired, slot, s.queues, s.times, r.config.MaxHold).Scan(&expired); err != nil {
		return false, fmt.Errorf("look whether segment %d has expired: %w", slot, err)
	}
	return expired, nil
}

// drop takes the oldest segment out of force. What open items need of it is carried
// over first, so that claimers of the new phase find it.
func (r *Roller) drop(ctx context.Context, tx pgx.Tx, s *rollState, result *RollResult) error {
	oldest := s.phase.lookups[0]
	if err := r.carry(ctx, tx, oldest, s.phase.inserts[0], result); err != nil {
		return err
	}
	rest := s.phase.lookups[1:]
	if err := r.put(ctx, tx, s, s.phase.inserts, rest, s.resultSlot, result); err != nil {
		return err
	}
	next := append(slices.Clone(rest), s.phase.inserts[0])[0]
	if _, err := tx.Exec(ctx, r.sql.forgotten, oldest, next); err != nil {
		return fmt.Errorf("tell since when segment %d is complete: %w", next, err)
	}
	return nil
}

// carry copies the claims that open items refer to into the current segment.
func (r *Roller) carry(ctx context.Context, tx pgx.Tx, from, to int16, result *RollResult) error {
	tag, err := tx.Exec(ctx, r.sql.carry[from][to])
	if err != nil {
		return fmt.Errorf("carry the claims of open items over from segment %d: %w", from, err)
	}
	result.Carried += tag.RowsAffected()
	return nil
}

// forget empties a segment that is out of force and that no claimer looks into any
// more. Items that were opened since the phase changed have their claims carried
// over here.
func (r *Roller) forget(ctx context.Context, tx pgx.Tx, slot int16, p *phase, result *RollResult) error {
	if _, err := tx.Exec(ctx, r.sql.lock[slot]); err != nil {
		return fmt.Errorf("lock segment %d to empty it: %w", slot, err)
	}
	var unused bool
	if err := tx.QueryRow(ctx, r.sql.unused, slot).Scan(&unused); err != nil {
		return fmt.Errorf("look whether segment %d is out of force: %w", slot, err)
	}
	if !unused {
		return fmt.Errorf("segment %d is in force again: some other program has written claim_phases; nothing was emptied", slot)
	}
	if err := r.carry(ctx, tx, slot, p.inserts[0], result); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, r.sql.truncate[slot]); err != nil {
		return fmt.Errorf("empty segment %d: %w", slot, err)
	}
	for _, statement := range []string{r.sql.reset, r.sql.resetClocks} {
		if _, err := tx.Exec(ctx, statement, slot); err != nil {
			return fmt.Errorf("note that segment %d is empty: %w", slot, err)
		}
	}
	result.Forgotten++
	return nil
}
