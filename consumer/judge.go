package consumer

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/dlq"
)

// conflictError is a dead letter's error when its id was used for something else.
type conflictError struct{}

func (conflictError) Error() string {
	return "the id was used before with another fingerprint: the same id asks for something else"
}

// ErrorClass returns "conflict".
func (conflictError) ErrorClass() string { return "conflict" }

var errConflict error = conflictError{}

// judge decides, before any handler runs, the tasks that none is to see. What it
// leaves undecided is new.
func (a *attempt) judge() error {
	a.failedKeys, a.asideKeys = keyMarks{}, keyMarks{}
	for i, t := range a.w.tasks {
		t.verdict, t.turn = verdict{}, i
	}
	if a.flight != nil {
		outcomes, err := a.flight.Resolve(a.ctx, a.tx)
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		for i, t := range a.asked {
			t.verdict.recorded = &outcomes[i]
			t.verdict.claimed = outcomes[i].Kind == dedup.Claimed
		}
	}
	for _, t := range a.w.tasks {
		a.judgeTask(t)
	}
	return nil
}

func (a *attempt) judgeTask(t *task) {
	v := &t.verdict
	source := t.source()
	asked := fingerprint{sum: t.message.Identity.Fingerprint, version: t.message.Identity.FingerprintVersion}
	switch {
	case t.strand != nil && a.known.sources[*source]:
		v.fate = known
	case t.unfit != nil:
		a.die(t, unfitReason(t.unfit), t.unfit)
	case t.handler == nil:
		v.fate, v.err = skipped, errNoRoute
	case v.recorded != nil && a.isLaterCopy(t):
		// Decided after its first copy: see settleCopies. What is known of that one now
		// is known for good.
		// A conflict that would hold its order key is left to a batch in which it is
		// judged before what stands behind it has run.
		first := a.firstOf(t)
		holds := a.c.config.OnDead == Block && v.recorded.Kind == dedup.Conflict
		if first.verdict.fate == known || first.verdict.fate == dead || holds {
			a.putAside(t)
		}
	case v.recorded != nil && v.recorded.Kind == dedup.Conflict:
		a.die(t, dlq.Conflict, errConflict)
	case v.recorded != nil && v.recorded.Kind == dedup.Duplicate:
		v.fate = duplicate
	default:
		a.judgeNew(t, asked)
	}
}

// judgeNew looks at what waits: for the same id, and for the same order key.
func (a *attempt) judgeNew(t *task, asked fingerprint) {
	v := &t.verdict
	if t.strand != nil {
		if first, waits := a.known.waiting[t.message.claim]; waits {
			if first.differs(asked) {
				a.die(t, dlq.Conflict, errConflict)
			} else {
				v.fate = folded
			}
			return
		}
		if t.orderKey != uuid.Nil && (a.known.keys[t.orderKey] || a.failedKeys.before(t)) {
			a.block(t)
			return
		}
	}
	for _, l := range a.known.letters[t.message.claim] {
		if !l.differs(asked) {
			v.closes = append(v.closes, l.id)
		}
	}
}

// block stores t behind an unfinished message of its order key; what comes after
// it is behind it.
func (a *attempt) block(t *task) {
	t.verdict.fate = blocked
	a.failedKeys.mark(t)
}

// isLaterCopy: its id stands earlier in the batch, under a claim made by this
// transaction. Copies of an id that was claimed before are judged by that claim.
func (a *attempt) isLaterCopy(t *task) bool {
	return a.flight.FirstCopy(t.place) != t.place && a.firstOf(t).verdict.claimed
}

func (a *attempt) firstOf(t *task) *task { return a.asked[a.flight.FirstCopy(t.place)] }

// settleCopies decides later copies of an id that stands in the batch more than
// once, by what became of the first: as if each had come alone, after it.
func (a *attempt) settleCopies() {
	if a.flight == nil {
		return
	}
	for _, t := range a.asked {
		if t.verdict.fate != undecided || !a.isLaterCopy(t) {
			continue
		}
		differs := t.verdict.recorded.Kind == dedup.Conflict
		switch a.firstOf(t).verdict.fate {
		case succeeded, skipped, duplicate:
			if differs {
				a.die(t, dlq.Conflict, errConflict)
			} else {
				t.verdict.fate = duplicate
			}
		case delayed, blocked, folded:
			if differs {
				a.die(t, dlq.Conflict, errConflict)
			} else {
				t.verdict.fate = folded
			}
		default: // dead, known, or not decided in this batch: it runs, in one of its own
			a.putAside(t)
		}
	}
}

// putCopiesAside leaves the later copies of t's id to another batch, at the moment
// that t is known to be dead or set aside: a copy is tried then, and what comes
// behind it in its order key must not overtake it in this batch.
func (a *attempt) putCopiesAside(t *task) {
	if a.flight == nil || !t.verdict.claimed || a.flight.FirstCopy(t.place) != t.place {
		return
	}
	for _, later := range a.asked[t.place+1:] {
		if later.verdict.fate == undecided && a.flight.FirstCopy(later.place) == t.place {
			a.putAside(later)
		}
	}
}

// unfitReason is the reason that a message which cannot be identified dies of.
func unfitReason(err error) dlq.Reason {
	if _, ok := errors.AsType[*dedup.MissingIDError](err); ok {
		return dlq.MissingID
	}
	return dlq.Undecodable
}

// errNoRoute is why a message that no route takes is skipped.
var errNoRoute = Skip("no route takes the message")

// identify finds a record's id and handler. It touches no database.
func (c *Consumer) identify(t *task, topicID [16]byte) {
	t.message.Identity, t.unfit = c.config.Rules.Identify(c.config.Queue, t.record, topicID)
	if t.unfit == nil {
		t.message.claim = t.message.Identity.Digest()
	}
	t.handler = c.handlerOf(t.message)
}

func (c *Consumer) handlerOf(m *Message) *Handler {
	for i := range c.config.Routes {
		if c.config.Routes[i].takes(m) {
			return &c.config.Routes[i].Handler
		}
	}
	if c.config.Handler.kind != kindNone {
		return &c.config.Handler
	}
	return nil
}
