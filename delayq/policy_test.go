package delayq_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/delayq"
)

func zero() float64 { return 0 }
func one() float64  { return 1 }

func TestPolicyZeroValueIsPegas(t *testing.T) {
	t.Parallel()
	var p delayq.Policy
	var delays []time.Duration
	for attempt := 1; ; attempt++ {
		delay, again := p.Next(attempt, 0, 0, zero)
		if !again {
			break
		}
		delays = append(delays, delay)
	}
	if diff := cmp.Diff([]time.Duration{time.Minute, 2 * time.Minute}, delays); diff != "" {
		t.Fatalf("three attempts, the first included, after one and two minutes (-want +got):\n%s", diff)
	}
	if got, want := p.Horizon(), 3*time.Minute+18*time.Second; got != want {
		t.Fatalf("horizon %v, want %v: both delays at their longest", got, want)
	}
}

func TestPolicyNext(t *testing.T) {
	t.Parallel()
	growing := delayq.Policy{MaxAttempts: 10, InitialDelay: time.Second, Factor: 3, MaxDelay: 10 * time.Second, NoJitter: true}
	jittered := growing
	jittered.NoJitter, jittered.Jitter = false, 0.5
	limited := growing
	limited.Deadline = time.Minute
	for name, c := range map[string]struct {
		policy              delayq.Policy
		attempts            int
		elapsed, retryAfter time.Duration
		random              func() float64
		delay               time.Duration
		again               bool
	}{
		"the first":                           {growing, 1, 0, 0, one, time.Second, true},
		"the second":                          {growing, 2, 0, 0, one, 3 * time.Second, true},
		"max_delay bounds it":                 {growing, 4, 0, 0, one, 10 * time.Second, true},
		"the last attempt":                    {growing, 10, 0, 0, one, 0, false},
		"an attempt beyond the last":          {growing, 11, 0, 0, one, 0, false},
		"jitter lengthens":                    {jittered, 1, 0, 0, one, 1500 * time.Millisecond, true},
		"jitter lengthens beyond max_delay":   {jittered, 9, 0, 0, one, 15 * time.Second, true},
		"jitter never shortens":               {jittered, 1, 0, 0, func() float64 { return -3 }, time.Second, true},
		"a random number that is none":        {jittered, 1, 0, 0, math.NaN, time.Second, true},
		"RetryAfter is a floor":               {growing, 1, 0, time.Hour, one, time.Hour, true},
		"RetryAfter shortens nothing":         {growing, 2, 0, time.Millisecond, one, 3 * time.Second, true},
		"a negative RetryAfter is none":       {growing, 1, 0, -time.Hour, one, time.Second, true},
		"RetryAfter is bounded":               {growing, 1, 0, math.MaxInt64, one, delayq.LongestDelay, true},
		"RetryAfter adds no attempt":          {growing, 10, 0, time.Hour, one, 0, false},
		"inside the deadline":                 {limited, 4, 50 * time.Second, 0, one, 10 * time.Second, true},
		"a delay that ends behind it":         {limited, 4, 50*time.Second + 1, 0, one, 0, false},
		"a RetryAfter that ends behind it":    {limited, 1, 0, time.Hour, one, 0, false},
		"the deadline is long over":           {limited, 1, math.MaxInt64, 0, one, 0, false},
		"a clock that went backwards":         {limited, 1, math.MinInt64, 0, one, time.Second, true},
		"an attempt number that is none":      {growing, math.MinInt, 0, 0, one, time.Second, true},
		"one attempt only, nothing is waited": {delayq.Policy{MaxAttempts: 1}, 1, 0, 0, one, 0, false},
	} {
		delay, again := c.policy.Next(c.attempts, c.elapsed, c.retryAfter, c.random)
		if delay != c.delay || again != c.again {
			t.Errorf("%s: %v, %v; want %v, %v", name, delay, again, c.delay, c.again)
		}
	}
}

// anyPolicy draws policies nobody would configure, and ones that Validate refuses.
func anyPolicy() *rapid.Generator[delayq.Policy] {
	return rapid.Custom(func(t *rapid.T) delayq.Policy {
		return delayq.Policy{
			MaxAttempts:  rapid.Int().Draw(t, "max attempts"),
			InitialDelay: time.Duration(rapid.Int64().Draw(t, "initial")),
			Factor:       rapid.Float64().Draw(t, "factor"),
			MaxDelay:     time.Duration(rapid.Int64().Draw(t, "max delay")),
			Jitter:       rapid.Float64().Draw(t, "jitter"),
			NoJitter:     rapid.Bool().Draw(t, "no jitter"),
		}
	})
}

func TestPolicyDelayIsNeverZeroNegativeOrOverflowing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := anyPolicy().Draw(t, "policy")
		delay, again := p.Next(rapid.Int().Draw(t, "attempts"), time.Duration(rapid.Int64().Draw(t, "elapsed")),
			time.Duration(rapid.Int64().Draw(t, "retry after")), func() float64 { return rapid.Float64().Draw(t, "random") })
		switch {
		case again && (delay <= 0 || delay > 2*delayq.LongestDelay):
			t.Fatalf("delay %v", delay)
		case !again && delay != 0:
			t.Fatalf("nothing follows, yet the delay is %v", delay)
		}
		if horizon := p.Horizon(); horizon < 0 {
			t.Fatalf("horizon %v", horizon)
		}
	})
}

func TestPolicyDelaysStayInsideTheHorizon(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := delayq.Policy{
			MaxAttempts:  rapid.IntRange(1, 60).Draw(t, "max attempts"),
			InitialDelay: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "initial")),
			Factor:       rapid.Float64Range(1, 10).Draw(t, "factor"),
			Jitter:       rapid.Float64Range(0, 1).Draw(t, "jitter"),
			Deadline:     time.Duration(rapid.Int64Range(0, int64(100*time.Hour)).Draw(t, "deadline")),
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		var elapsed, last time.Duration
		attempts := 1
		for ; ; attempts++ {
			delay, again := p.Next(attempts, elapsed, 0, func() float64 { return rapid.Float64Range(0, 1).Draw(t, "random") })
			if !again {
				break
			}
			// Within what jitter adds, delays never shrink.
			if lengthened := 1 + max(p.Jitter, delayq.DefaultJitter); float64(delay)*lengthened < float64(last)*0.999 {
				t.Fatalf("attempt %d waits %v, the one before %v", attempts+1, delay, last)
			}
			elapsed, last = elapsed+delay, delay
		}
		if elapsed > p.Horizon() {
			t.Fatalf("the last attempt was %v after the first, the horizon is %v", elapsed, p.Horizon())
		}
		if attempts > p.MaxAttempts || p.Deadline == 0 && attempts != p.MaxAttempts {
			t.Fatalf("%d attempts of %d", attempts, p.MaxAttempts)
		}
	})
}

func TestPolicyHorizonDoesNotOverflow(t *testing.T) {
	t.Parallel()
	p := delayq.Policy{MaxAttempts: math.MaxInt, InitialDelay: delayq.LongestDelay, MaxDelay: delayq.LongestDelay, Jitter: 1}
	if got := p.Horizon(); got != math.MaxInt64 {
		t.Fatalf("horizon %v, want the longest there is", got)
	}
	p.Deadline = time.Hour
	if got := p.Horizon(); got != time.Hour {
		t.Fatalf("horizon %v, want the deadline", got)
	}
}

func TestPolicyValidateNamesTheField(t *testing.T) {
	t.Parallel()
	if err := (delayq.Policy{}).Validate(); err != nil {
		t.Fatalf("the zero policy: %v", err)
	}
	for field, p := range map[string]delayq.Policy{
		"max_attempts":  {MaxAttempts: -1},
		"initial_delay": {InitialDelay: -time.Second},
		"delay_factor":  {Factor: 0.5},
		"max_delay":     {InitialDelay: 2 * time.Minute, MaxDelay: time.Minute},
		"jitter":        {Jitter: 1.5},
		"deadline":      {Deadline: -1},
	} {
		var wrong *delayq.FieldError
		if err := p.Validate(); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%+v: error %v, want one about %s", p, err, field)
		}
	}
	for _, p := range []delayq.Policy{
		{Factor: math.NaN()},
		{Factor: math.Inf(1)},
		{Jitter: math.NaN()},
		{Jitter: -0.1},
		{Jitter: 0.2, NoJitter: true},
		{InitialDelay: 2 * delayq.LongestDelay},
		{MaxDelay: -1},
		{MaxDelay: time.Second},
	} {
		if p.Validate() == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
	if err := (delayq.Policy{MaxAttempts: -1, Factor: -1, Deadline: -1}).Validate(); err == nil || len(unwrap(err)) != 3 {
		t.Errorf("three wrong fields give %v, want all of them told", err)
	}
}

func unwrap(err error) []error {
	var list interface{ Unwrap() []error }
	if errors.As(err, &list) {
		return list.Unwrap()
	}
	return nil
}
