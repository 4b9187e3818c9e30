package outbox

import (
	"sync"
	"time"
)

// Stats is what a relay has done since it was made, and how it stands.
type Stats struct {
	// Published counts records that the brokers have acknowledged, copies included.
	Published uint64
	// SetAside counts records that were set aside, also those that only wait behind
	// another one; Retried counts those that went out later.
	SetAside, Retried uint64
	// Failures counts rounds that ended with an error: brokers or the database were
	// away, or a lease was lost. LastError is the newest, as text.
	Failures  uint64
	LastError string
	// Leased is how many slices this relay has.
	Leased int
	// Pending is how many records of the windows being published are not yet
	// acknowledged. What was added after a window was opened is not in it; Depth
	// counts that too.
	Pending int
	// Lag is how long ago the outbox was last seen to be empty, over the slices that
	// this relay has: the age that an effect has at most, or 0 without a slice.
	Lag time.Duration
}

// Stats returns the relay's numbers. It does not touch the database.
func (r *Relay) Stats() Stats { return r.stats.read() }

// counters are a relay's numbers; all its goroutines write them.
type counters struct {
	mu     sync.Mutex
	sum    Stats
	slices []sliceCounters
}

type sliceCounters struct {
	leased  bool
	pending int
	current time.Time // when nothing was left to do
}

func newCounters(slices int) *counters { return &counters{slices: make([]sliceCounters, slices)} }

func (c *counters) published(sent, aside int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Published += uint64(max(sent, 0))
	c.sum.SetAside += uint64(max(aside, 0))
}

func (c *counters) retried(sent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Published += uint64(max(sent, 0))
	c.sum.Retried += uint64(max(sent, 0))
}

func (c *counters) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Failures++
	c.sum.LastError = err.Error()
}

func (c *counters) leased(slice int16, leased bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slices[slice] = sliceCounters{leased: leased, current: time.Now()}
}

func (c *counters) pending(slice int16, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slices[slice].pending = rows
}

func (c *counters) upToDate(slice int16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slices[slice].current = time.Now()
	c.slices[slice].pending = 0
}

func (c *counters) read() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := c.sum
	for _, s := range c.slices {
		if s.leased {
			stats.Leased++
			stats.Pending += s.pending
			stats.Lag = max(stats.Lag, time.Since(s.current))
		}
	}
	return stats
}
