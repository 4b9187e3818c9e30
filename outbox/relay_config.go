package outbox

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
)

// RelayConfig says how a relay works. The zero value is ready to use.
type RelayConfig struct {
	// Schema is the schema of claimq's tables, unquoted. Default: claimq.
	Schema string
	// Instance names this process in the relay's rows and logs. Default: the host's
	// name, the process id and a random part.
	Instance string
	// Slices is how many parts the keys are split into, each relayed by one process
	// at a time: 1 to 64, the same in all processes. More slices let several
	// processes share the work. To change it, restart all relays: the ones with the
	// old number keep their parts until they stop. Default: 1.
	Slices int
	// Lease is how long a slice stays with a relay that has gone silent: the time
	// until another takes over after a crash. At least 1 s. Default: 10 s.
	Lease time.Duration
	// IdlePoll is the longest pause between two looks at an outbox in which nothing
	// happens; after work, and after Wake, the relay looks at once. Default: 500 ms.
	IdlePoll time.Duration
	// RetryInitial and RetryMax bound the delay, doubled each time, after which a
	// record that was set aside is tried again. Not below 1 s. Defaults: 1 s, 5 min.
	RetryInitial, RetryMax time.Duration
	// ProduceTimeout is how long the relay waits for the answer to what it has
	// sent, before it throws its producer away and sends the same again with a new
	// one. It is no limit for a record: during an outage the relay waits as long as
	// the outage lasts, and sets nothing aside. Default: 2 min.
	ProduceTimeout time.Duration
	// StopGrace is how long Stop lets records that are on their way arrive, before
	// it gives them up to the next relay, which sends them again. Default: 2 s.
	StopGrace time.Duration
	// RotateEvery is how often the relay tries to empty the slot of the outbox that
	// will be written next. Default: 10 s.
	RotateEvery time.Duration
	// Logger gets what an operator should know; never a payload. Default: discard.
	Logger *slog.Logger
}

const (
	// queryTimeout bounds each statement of a relay.
	queryTimeout = 30 * time.Second
	// pageRows and pageBytes bound what is read ahead.
	pageRows  = 4096
	pageBytes = 4 << 20
	// listRows bounds the places of a window that are kept while it is published;
	// a larger window is listed again from where the first list ended.
	listRows = 250_000
)

// withDefaults fills what was left out; the error names the field and its range.
func (c RelayConfig) withDefaults() (RelayConfig, error) {
	if c.Slices == 0 {
		c.Slices = 1
	}
	if c.Slices < 1 || c.Slices > buckets {
		return c, fmt.Errorf("outbox: Slices is %d: it must be between 1 and %d", c.Slices, buckets)
	}
	if c.Instance == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		c.Instance = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8])
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
		least    time.Duration
	}{
		{"Lease", &c.Lease, 10 * time.Second, time.Second},
		{"IdlePoll", &c.IdlePoll, 500 * time.Millisecond, time.Millisecond},
		{"RetryInitial", &c.RetryInitial, time.Second, time.Second},
		{"RetryMax", &c.RetryMax, 5 * time.Minute, time.Second},
		{"ProduceTimeout", &c.ProduceTimeout, 2 * time.Minute, time.Second},
		{"StopGrace", &c.StopGrace, 2 * time.Second, time.Millisecond},
		{"RotateEvery", &c.RotateEvery, 10 * time.Second, time.Millisecond},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
		if *d.value < d.least {
			return c, fmt.Errorf("outbox: %s is %v: it must be at least %v, or 0 for %v", d.name, *d.value, d.least, d.standard)
		}
	}
	return c, nil
}

// retryDelay is the pause after the given number of failed attempts.
func (c *RelayConfig) retryDelay(attempts int) time.Duration {
	delay := c.RetryInitial
	for range min(attempts, 30) - 1 {
		delay *= 2
		if delay >= c.RetryMax {
			return c.RetryMax
		}
	}
	return min(delay, c.RetryMax)
}
