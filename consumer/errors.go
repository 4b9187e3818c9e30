package consumer

import (
	"errors"
	"fmt"
	"time"
)

// Permanent marks an error that no further attempt can cure: the message goes to
// the dead letters at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{err: err, permanent: true}
}

// RetryAfter sets the delay before the next attempt, as a floor under the queue's
// policy: a target's Retry-After, for instance. d <= 0 leaves the policy's delay.
// RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{err: err, after: max(d, 0)}
}

// Skip says that the message needs no effect, and why. It is counted and moves on.
// Writes that the handler made before it stay and the claim is made, exactly as
// for nil: a repeat of the message is a duplicate.
func Skip(reason string) error { return &skipError{reason: reason} }

// FailedAt names the message at index i of a Batch handler's slice as the cause of
// err, which may be Permanent or RetryAfter. FailedAt(i, nil) is nil. An index
// outside the slice counts as an error that names nobody.
func FailedAt(i int, err error) error {
	if err == nil {
		return nil
	}
	return &failedAtError{index: i, err: err}
}

// A ClassedError has a class of its own in metrics, causes and retry policies. Any
// error in a chain can implement it; else the class is the SQLSTATE, "cancelled" for
// a context that ended, or the Go type of the innermost error.
type ClassedError interface {
	error
	// ErrorClass returns a short constant word. Its number of values must be bounded.
	// "undecodable", with Permanent, is the dead letter's reason as well.
	ErrorClass() string
}

type verdictError struct {
	err       error
	permanent bool
	after     time.Duration
}

func (e *verdictError) Error() string { return e.err.Error() }
func (e *verdictError) Unwrap() error { return e.err }

type skipError struct{ reason string }

func (e *skipError) Error() string { return "skipped: " + e.reason }

type failedAtError struct {
	index int
	err   error
}

func (e *failedAtError) Error() string {
	return fmt.Sprintf("message %d of the batch: %v", e.index, e.err)
}
func (e *failedAtError) Unwrap() error { return e.err }

// A PanicError is a handler's panic. It is retried like any other error.
type PanicError struct {
	// Value is what was panicked with.
	Value any
	// Stack is the goroutine's stack, bounded.
	Stack string
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ErrorClass returns "panic".
func (e *PanicError) ErrorClass() string { return "panic" }

// A TimeoutError says that a handler did not return within Config.HandlerTimeout.
type TimeoutError struct {
	// After is the time it was given.
	After time.Duration
	// Abandoned says that the handler did not return after its context ended either
	// and was left behind, with its connection closed under it.
	Abandoned bool
}

func (e *TimeoutError) Error() string {
	if e.Abandoned {
		return fmt.Sprintf("the handler did not return within %s, nor after its context ended; it was left behind and its connection closed", e.After)
	}
	return fmt.Sprintf("the handler did not return within %s", e.After)
}

// ErrorClass returns "timeout".
func (e *TimeoutError) ErrorClass() string { return "timeout" }

// Timeout reports true, as net.Error does.
func (e *TimeoutError) Timeout() bool { return true }

// ErrTransactionControl is returned by the transaction that a handler is given for
// Commit, Rollback and for transaction control sent as SQL text.
var ErrTransactionControl = errors.New("claimq: the transaction belongs to the consumer: commit, rollback, savepoint and session settings are not a handler's; return an error to undo")

// ErrTransactionTouched says that a handler left the transaction aborted, or ended
// it behind the consumer's back, and returned nil.
var ErrTransactionTouched = errors.New("claimq: the handler returned nil and left the transaction aborted: return the error of the statement that failed")
