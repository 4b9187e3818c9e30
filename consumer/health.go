package consumer

import (
	"fmt"
	"sort"
	"sync"
	"time"
)

// Health is how a queue's worker is doing, for probes and people.
type Health struct {
	Queue string
	// Live is false only when the worker has ended and will not come back by itself.
	Live bool
	// Ready: it has nothing to complain of. An idle queue is ready.
	Ready bool
	// Problems say what is stuck, where and since when; empty when Ready.
	Problems []string
}

const (
	// unownedFor is how long a partition may be ours in Kafka and not in Postgres.
	unownedFor = 5 * time.Second
	// stuckAfter is how old the oldest message in hand may get, beyond what its handler
	// may take, before its partition counts as stuck.
	stuckAfter = 30 * time.Second
	// databaseDownFor is how long the database may fail before it is a problem.
	databaseDownFor = 3 * time.Second
	// fetchTroubleFor is how long a failure to fetch is a problem after it was last met.
	fetchTroubleFor = 15 * time.Second
)

// health collects what goes wrong in the background.
type health struct {
	mu         sync.Mutex
	down       error // the database's failure
	downSince  time.Time
	partitions map[partitionKey]error   // stand still
	fetches    map[partitionKey]trouble // are tried again
}

type trouble struct {
	err error
	at  time.Time
}

func newHealth() *health {
	return &health{partitions: map[partitionKey]error{}, fetches: map[partitionKey]trouble{}}
}

// database notes how the newest use of the database went.
func (h *health) database(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.down = nil
		return
	}
	if h.down == nil {
		h.downSince = time.Now()
	}
	h.down = err
}

// fetching notes that a partition was not fetched, and will be tried again.
func (h *health) fetching(key partitionKey, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fetches[key] = trouble{err: err, at: time.Now()}
}

// partition notes why a partition stands still, or with nil that it has no problem.
func (h *health) partition(key partitionKey, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		delete(h.partitions, key)
		delete(h.fetches, key)
		return
	}
	h.partitions[key] = err
}

// Health tells how the worker is doing now.
func (c *Consumer) Health() Health {
	h := Health{Queue: c.config.Queue, Live: true}
	select {
	case <-c.life.done:
		h.Live = false
		h.Problems = append(h.Problems, "the consumer has stopped")
		if err := c.Err(); err != nil {
			h.Problems = append(h.Problems, err.Error())
		}
	default:
	}
	h.Problems = append(h.Problems, c.health.problems()...)
	h.Problems = append(h.Problems, c.ownershipProblems()...)
	h.Problems = append(h.Problems, c.stuckPartitions()...)
	sort.Strings(h.Problems)
	h.Ready = len(h.Problems) == 0
	return h
}

func (h *health) problems() (problems []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down != nil && time.Since(h.downSince) > databaseDownFor {
		problems = append(problems, fmt.Sprintf("the database fails since %s: %v", h.downSince.UTC().Format(time.RFC3339), h.down))
	}
	for key, err := range h.partitions {
		problems = append(problems, fmt.Sprintf("topic %q, partition %d: %v", key.topic, key.partition, err))
	}
	for key, t := range h.fetches {
		if time.Since(t.at) < fetchTroubleFor {
			problems = append(problems, fmt.Sprintf("topic %q, partition %d is not fetched: %v", key.topic, key.partition, t.err))
		}
	}
	return problems
}

func (c *Consumer) ownershipProblems() (problems []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, since := range c.held {
		if !since.IsZero() && time.Since(since) > unownedFor {
			problems = append(problems, fmt.Sprintf("topic %q, partition %d: assigned by Kafka and not owned in the database since %s",
				key.topic, key.partition, since.UTC().Format(time.RFC3339)))
		}
	}
	return problems
}

// stuckPartitions are those that have messages in hand and whose position has not
// moved for longer than a handler may take.
func (c *Consumer) stuckPartitions() (problems []string) {
	limit := c.config.HandlerTimeout + stuckAfter
	ps := c.owned()
	c.scheduler.mu.Lock()
	defer c.scheduler.mu.Unlock()
	for _, p := range ps {
		if p.stillSince.IsZero() || time.Since(p.stillSince) < limit {
			continue
		}
		if offset, _, ok := p.track.oldest(); ok {
			problems = append(problems, fmt.Sprintf("topic %q, partition %d: stuck at offset %d for %s",
				p.topic, p.partition, offset, time.Since(p.stillSince).Round(time.Second)))
		}
	}
	return problems
}
