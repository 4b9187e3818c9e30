package delayq

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Outcome is what became of an item that was handed out.
type Outcome int

const (
	// Untouched: the handler was never started for it, because an item before it
	// failed or the time was up. The start is taken back. The zero Outcome, so
	// that a verdict which was forgotten uses no attempt and loses nothing.
	Untouched Outcome = iota
	// Done: its effect is in this transaction. The item is removed.
	Done
	// Retry: the attempt failed and there is another one, After from now.
	Retry
	// Dead: there is no further attempt. The item is removed; its dead letter is
	// put by the caller in the same transaction.
	Dead
	// Interrupted: the handler was started and cut short by what is not the
	// message's fault. No attempt is used; Message is the reason.
	Interrupted
)

func (o Outcome) String() string {
	names := [...]string{"untouched", "done", "retry", "dead", "interrupted"}
	if o < 0 || int(o) >= len(names) {
		return fmt.Sprintf("outcome %d", int(o))
	}
	return names[o]
}

// Verdict is the outcome of one item.
type Verdict struct {
	Outcome Outcome
	// After is how long a Retry waits, by the database's clock from the last
	// flight on. See Policy.Next.
	After time.Duration
	// Class and Message are the failure of a Retry; Message is the reason of an
	// Interrupted. Any bytes are fine.
	Class, Message string
}

// Finished is a run with a verdict for each of its items, in their order.
type Finished struct {
	Run      *Run
	Verdicts []Verdict
}

// A VerdictError says that verdicts cannot be those of the run. Nothing was queued.
type VerdictError struct {
	OrderKey uuid.UUID
	Problem  string
}

func (e *VerdictError) Error() string {
	return fmt.Sprintf("verdicts on the run of order key %s: %s", e.OrderKey, e.Problem)
}

// assertLeasesSQL locks the keys and raises CQ003 unless every lease is still the
// caller's. It comes before every write about items, in a statement of its own:
// the writes' snapshots are then newer than whatever the lock waited for.
const assertLeasesSQL = `select claimq.assert_leases($1, $2, $3)`

// finishSQL removes items that are done or dead. Like all writes here it repeats
// the lease's token and refuses with CQ003 when an item that was handed out is not
// there under it.
const finishSQL = `
with gone as (
     delete from claimq.delayed d
      using unnest($1::uuid[], $2::uuid[]) as u (id, token)
      where d.id = u.id and d.lease_token = u.token
     returning 1)
select claimq.assert_handed_out(count(*), cardinality($1::uuid[])) from gone`

// retrySQL turns starts into attempts. It is the only statement that counts one.
const retrySQL = `
with kept as (
     update claimq.delayed d
        set kind = case d.kind when 'replay' then d.kind else 'failed' end,
            attempts = d.attempts + 1, lease_token = null,
            due_at = clock_timestamp() + u.after, failed_at = clock_timestamp(),
            error_class = u.class, error_message = u.message
       from unnest($1::uuid[], $2::uuid[], $3::interval[], $4::text[], $5::text[]) as u (id, token, after, class, message)
      where d.id = u.id and d.lease_token = u.token
     returning 1)
select claimq.assert_handed_out(count(*), cardinality($1::uuid[])) from kept`

// giveBackSQL takes back the starts of items whose handler never ran.
const giveBackSQL = `
with kept as (
     update claimq.delayed d
        set starts = d.starts - 1, lease_token = null
       from unnest($1::uuid[], $2::uuid[]) as u (id, token)
      where d.id = u.id and d.lease_token = u.token
     returning 1)
select claimq.assert_handed_out(count(*), cardinality($1::uuid[])) from kept`

// interruptSQL counts starts that were cut short.
const interruptSQL = `
with kept as (
     update claimq.delayed d
        set interrupted = d.interrupted + 1, interrupted_why = u.why, lease_token = null
       from unnest($1::uuid[], $2::uuid[], $3::text[]) as u (id, token, why)
      where d.id = u.id and d.lease_token = u.token
     returning 1)
select claimq.assert_handed_out(count(*), cardinality($1::uuid[])) from kept`

// settleSQL ends the leases: a key becomes due as its head is, or goes with its
// last item.
const settleSQL = `select claimq.settle_keys($1, $2, $3)`

// Finish queues the statements that write verdicts and end the leases, for any
// number of runs of one queue, in a fixed number of statements. When a lease was
// lost they raise SQLSTATE CQ003 (sqlstate.LeaseLost), and a COMMIT that stands
// behind them in the same flight never runs. They have statements planned as they
// are run for the rest of the transaction.
//
//	X leases k with token x, works on            Y leases k with token y when x has ended
//	X finishes: no row of k has token x → CQ003  Y's items carry y; nothing of X's is written
//
//	X finishes late, but nobody has taken k      X's lock holds k: Y skips it, X's verdicts stand
//
// It returns a *VerdictError, and queues nothing, when the verdicts cannot be of
// the runs: one is missing, or an item behind a Retry or Interrupted was handled
// all the same.
func (s *Store) Finish(b *pgx.Batch, queue int32, finished []Finished) error {
	if len(finished) == 0 {
		return nil
	}
	finished = slices.Clone(finished)
	slices.SortFunc(finished, func(a, b Finished) int { return compareKeys(a.Run.OrderKey, b.Run.OrderKey) })
	var all verdictArrays
	for _, f := range finished {
		if err := f.check(queue); err != nil {
			return err
		}
		all.append(f)
	}
	b.Queue(protectPlans)
	b.Queue(s.sql.assertLeases, queue, all.keys, all.tokens)
	if all.gone.any() {
		b.Queue(s.sql.finish, all.gone.ids, all.gone.tokens)
	}
	if all.retry.any() {
		b.Queue(s.sql.retry, all.retry.ids, all.retry.tokens, all.afters, all.classes, all.messages)
	}
	if all.untouched.any() {
		b.Queue(s.sql.giveBack, all.untouched.ids, all.untouched.tokens)
	}
	if all.interrupted.any() {
		b.Queue(s.sql.interrupt, all.interrupted.ids, all.interrupted.tokens, all.reasons)
	}
	b.Queue(s.sql.settle, queue, all.keys, all.tokens)
	return nil
}

// check refuses verdicts that would break the order of a key or lose an item.
func (f Finished) check(queue int32) error {
	wrong := func(format string, args ...any) error {
		return &VerdictError{OrderKey: f.Run.OrderKey, Problem: fmt.Sprintf(format, args...)}
	}
	if f.Run.Queue != queue {
		return wrong("the run is of queue %d and not of %d", f.Run.Queue, queue)
	}
	if len(f.Verdicts) != len(f.Run.Items) {
		return wrong("%d verdicts on %d items", len(f.Verdicts), len(f.Run.Items))
	}
	stopped := -1
	for i, v := range f.Verdicts {
		switch v.Outcome {
		case Done, Dead, Retry:
			if stopped >= 0 {
				return wrong("item %d is %v, but item %d before it is %v", i, v.Outcome, stopped, f.Verdicts[stopped].Outcome)
			}
		case Untouched, Interrupted:
		default:
			return wrong("item %d has %v", i, v.Outcome)
		}
		if stopped < 0 && v.Outcome != Done && v.Outcome != Dead {
			stopped = i
		}
	}
	return nil
}

// Release gives runs back before their leases end: their keys are ready again at
// once. The items count as interrupted, for the reason given, and no attempt is
// used. For items that were never started use Finish with Untouched.
//
// A lost lease is an error with SQLSTATE CQ003, and nothing is released then:
// who has the key now decides about it.
func (s *Store) Release(ctx context.Context, db DB, runs []*Run, reason string) error {
	byQueue := map[int32][]Finished{}
	for _, run := range runs {
		verdicts := slices.Repeat([]Verdict{{Outcome: Interrupted, Message: reason}}, len(run.Items))
		byQueue[run.Queue] = append(byQueue[run.Queue], Finished{Run: run, Verdicts: verdicts})
	}
	for queue, finished := range byQueue {
		err := pgx.BeginTxFunc(ctx, db, readCommitted, func(tx pgx.Tx) error {
			var b pgx.Batch
			if err := s.Finish(&b, queue, finished); err != nil {
				return err
			}
			return tx.SendBatch(ctx, &b).Close()
		})
		if err != nil {
			return fmt.Errorf("release %d leases of queue %d: %w", len(finished), queue, err)
		}
	}
	return nil
}

// handed is items and the tokens that they were handed out under.
type handed struct{ ids, tokens []uuid.UUID }

func (h *handed) any() bool { return len(h.ids) > 0 }

func (h *handed) append(id, token uuid.UUID) {
	h.ids, h.tokens = append(h.ids, id), append(h.tokens, token)
}

// verdictArrays is runs and verdicts side by side, sorted by outcome.
type verdictArrays struct {
	keys, tokens                        []uuid.UUID
	gone, retry, untouched, interrupted handed
	afters                              []pgtype.Interval
	classes, messages, reasons          []pgtype.Text
}

func (a *verdictArrays) append(f Finished) {
	a.keys, a.tokens = append(a.keys, f.Run.OrderKey), append(a.tokens, f.Run.Token)
	for i, v := range f.Verdicts {
		id := f.Run.Items[i].ID
		switch v.Outcome {
		case Done, Dead:
			a.gone.append(id, f.Run.Token)
		case Retry:
			a.retry.append(id, f.Run.Token)
			a.afters = append(a.afters, interval(max(v.After, shortestDelay)))
			a.classes = append(a.classes, text(v.Class, maxClass))
			a.messages = append(a.messages, text(v.Message, maxMessage))
		case Untouched:
			a.untouched.append(id, f.Run.Token)
		case Interrupted:
			a.interrupted.append(id, f.Run.Token)
			a.reasons = append(a.reasons, text(v.Message, maxClass))
		}
	}
}
