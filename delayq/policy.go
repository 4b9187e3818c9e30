package delayq

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// The defaults of a Policy.
const (
	DefaultMaxAttempts  = 3
	DefaultInitialDelay = time.Minute
	DefaultFactor       = 2.0
	DefaultMaxDelay     = time.Hour
	DefaultJitter       = 0.1
)

// LongestDelay bounds every delay, a handler's own included: what is asked for
// beyond it waits this long.
const LongestDelay = 365 * 24 * time.Hour

// shortestDelay is what a delay that jitter or rounding would make nothing becomes.
const shortestDelay = time.Millisecond

// Policy says when a failed message is tried again and when it is dead. The zero
// Policy is ready to use: three attempts, after one minute and after two more.
type Policy struct {
	// MaxAttempts is how often a message is tried before it is dead, the first
	// time included: 1 means that nothing is tried again. At least 1; 0 means
	// DefaultMaxAttempts. Only starts with a verdict are attempts: shutdown,
	// rebalance, outage and crash use none.
	MaxAttempts int
	// InitialDelay is the time between the first failure and the second attempt.
	// 0 means DefaultInitialDelay.
	InitialDelay time.Duration
	// Factor is what each further delay is multiplied with: 1 keeps them equal.
	// At least 1; 0 means DefaultFactor.
	Factor float64
	// MaxDelay bounds the growth. At least InitialDelay; 0 means DefaultMaxDelay,
	// or InitialDelay where that is longer.
	MaxDelay time.Duration
	// Jitter is the part of itself, from 0 to 1, that a delay is lengthened by at
	// the most, so that messages which failed together do not come back together.
	// It never shortens: who configures a minute waits a minute. 0 means
	// DefaultJitter; NoJitter turns it off.
	Jitter   float64
	NoJitter bool
	// Deadline is how long after its first failure (for a replay: after it was
	// ordered) a message may be tried. A delay that would end behind the deadline
	// is not waited for: the message is dead at once. 0 means none.
	Deadline time.Duration
}

// A FieldError says which field of a Policy is wrong. Field is the name in
// configuration files.
type FieldError struct {
	Field, Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Validate returns nil, or a *FieldError for each wrong field, joined.
func (p Policy) Validate() error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	if p.MaxAttempts < 0 {
		wrong("max_attempts", "%d is below 1; it counts the first attempt too", p.MaxAttempts)
	}
	if p.InitialDelay < 0 || p.InitialDelay > LongestDelay {
		wrong("initial_delay", "%v is not between 0 and %v", p.InitialDelay, LongestDelay)
	}
	if p.Factor != 0 && !(p.Factor >= 1 && p.Factor <= 1000) { // not: NaN fails too
		wrong("delay_factor", "%v is not between 1 and 1000", p.Factor)
	}
	switch {
	case p.MaxDelay < 0 || p.MaxDelay > LongestDelay:
		wrong("max_delay", "%v is not between 0 and %v", p.MaxDelay, LongestDelay)
	case p.MaxDelay != 0 && p.MaxDelay < p.withDefaults().InitialDelay:
		wrong("max_delay", "%v is shorter than initial_delay, %v", p.MaxDelay, p.withDefaults().InitialDelay)
	}
	if !(p.Jitter >= 0 && p.Jitter <= 1) {
		wrong("jitter", "%v is not between 0 and 1", p.Jitter)
	}
	if p.NoJitter && p.Jitter > 0 {
		wrong("jitter", "it is both turned off and %v", p.Jitter)
	}
	if p.Deadline < 0 {
		wrong("deadline", "%v is negative", p.Deadline)
	}
	return errors.Join(errs...)
}

// Next tells what follows the attempts-th failed attempt (1 is the first), made
// elapsed after the message was first stored: how long to wait for the next one,
// or that there is none.
//
// retryAfter is a floor that the failure itself asked for; 0 or less is none. It
// may exceed MaxDelay, and is bounded by LongestDelay. random returns numbers from
// 0 to 1 for the jitter; nil means math/rand. A delay is always positive, for any
// policy and any attempt number, and at most twice LongestDelay.
func (p Policy) Next(attempts int, elapsed, retryAfter time.Duration, random func() float64) (delay time.Duration, again bool) {
	p = p.withDefaults()
	if attempts >= p.MaxAttempts {
		return 0, false
	}
	delay = p.delay(attempts)
	if p.Jitter > 0 {
		if random == nil {
			random = rand.Float64
		}
		delay += time.Duration(float64(delay) * p.Jitter * clamp(random()))
	}
	delay = max(delay, min(retryAfter, LongestDelay))
	if p.Deadline > 0 && delay > p.Deadline-max(elapsed, 0) {
		return 0, false
	}
	return delay, true
}

// Horizon is the longest time from a message's first attempt to its last, by the
// policy alone: what ids must be remembered for, with all that comes on top. The
// time that attempts themselves take and what a failure asks for with RetryAfter
// are not in it; the claims of waiting items are pinned, so nothing is forgotten
// under them.
func (p Policy) Horizon() time.Duration {
	p = p.withDefaults()
	var sum time.Duration
	for attempt := 1; attempt < p.MaxAttempts; attempt++ {
		delay := p.delay(attempt)
		each := delay + time.Duration(float64(delay)*p.Jitter)
		if delay == p.MaxDelay || p.Factor == 1 { // it grows no more
			rest := time.Duration(p.MaxAttempts - attempt)
			if each > (math.MaxInt64-sum)/rest {
				sum = math.MaxInt64
			} else {
				sum += each * rest //nolint:durationcheck // rest is a number, of the type that each can be multiplied with
			}
			break
		}
		if sum > math.MaxInt64-each {
			sum = math.MaxInt64
			break
		}
		sum += each
	}
	if p.Deadline > 0 {
		return min(sum, p.Deadline)
	}
	return sum
}

// delay is the wait after the attempts-th attempt, before jitter.
func (p Policy) delay(attempts int) time.Duration {
	grown := float64(p.InitialDelay) * math.Pow(p.Factor, float64(max(attempts, 1)-1))
	if !(grown < float64(p.MaxDelay)) { // not: +Inf and NaN end here too
		return p.MaxDelay
	}
	return max(time.Duration(grown), shortestDelay)
}

// withDefaults fills in the zero fields, and keeps a policy that was never
// validated inside what the arithmetic takes.
func (p Policy) withDefaults() Policy {
	if p.MaxAttempts <= 0 {
		p.MaxAttempts = DefaultMaxAttempts
	}
	if p.InitialDelay <= 0 {
		p.InitialDelay = DefaultInitialDelay
	}
	p.InitialDelay = min(max(p.InitialDelay, shortestDelay), LongestDelay)
	if !(p.Factor >= 1) {
		p.Factor = DefaultFactor
	}
	if p.MaxDelay <= 0 {
		p.MaxDelay = DefaultMaxDelay
	}
	p.MaxDelay = min(max(p.MaxDelay, p.InitialDelay), LongestDelay)
	switch {
	case p.NoJitter:
		p.Jitter = 0
	case p.Jitter == 0:
		p.Jitter = DefaultJitter
	default:
		p.Jitter = clamp(p.Jitter)
	}
	return p
}

// clamp returns x within [0, 1]; NaN is 0.
func clamp(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}
