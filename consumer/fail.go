package consumer

import (
	"errors"
	"reflect"
	"strings"

	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/internal/sqlstate"
)

// fail gives a task whose handler failed its verdict: another attempt, or death.
func (a *attempt) fail(t *task, err error) {
	if named, ok := errors.AsType[*failedAtError](err); ok {
		err = named.err
	}
	var wish verdictError
	if found := (*verdictError)(nil); errors.As(err, &found) {
		wish = *found
	}
	switch {
	case wish.permanent && errorClass(err) == classUndecodable:
		a.die(t, dlq.Undecodable, err)
		return
	case wish.permanent:
		a.die(t, dlq.Permanent, err)
		return
	}
	delay, again := a.c.config.Retry.Next(t.attempts()+1, t.age(), wish.after, nil)
	if !again {
		a.die(t, dlq.Exhausted, err)
		return
	}
	t.verdict.fate, t.verdict.err, t.verdict.after = delayed, err, delay
	a.failedKeys.mark(t)
}

// die makes a task a dead letter.
func (a *attempt) die(t *task, reason dlq.Reason, err error) {
	t.verdict.fate, t.verdict.reason, t.verdict.err = dead, reason, err
	if a.c.config.OnDead == Block {
		a.failedKeys.mark(t)
	}
	a.putCopiesAside(t)
}

// classUndecodable is the class of errors that say a message is not what it should
// be; with Permanent it is the dead letter's reason too.
const classUndecodable = "undecodable"

// maxClassLength bounds an error's class: it becomes a metric's label.
const maxClassLength = 80

// errorClass names the kind of an error: what it says itself, else the SQLSTATE,
// else "cancelled" for a context that ended, else the Go type of the innermost error.
func errorClass(err error) string {
	if classed, ok := errors.AsType[ClassedError](err); ok {
		return shorten(classed.ErrorClass())
	}
	if code := sqlstate.Code(err); code != "" {
		return code
	}
	if ownDeadline(err) {
		return "cancelled"
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			break
		}
		err = inner
	}
	return shorten(strings.TrimPrefix(reflect.TypeOf(err).String(), "*"))
}

func shorten(class string) string {
	return class[:min(len(class), maxClassLength)]
}

// stackOf returns a panic's stack, and "" for any other error.
func stackOf(err error) string {
	if panicked, ok := errors.AsType[*PanicError](err); ok {
		return panicked.Stack
	}
	return ""
}
