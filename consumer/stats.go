package consumer

import (
	"sync"
	"time"
)

// stats are a worker's own figures of the last hour, by minute, for the heartbeat.
type stats struct {
	mu      sync.Mutex
	minutes [60]minute
}

type minute struct {
	at        int64 // minutes since the epoch
	processed int64
	handler   time.Duration
	handled   int64
}

func newStats() *stats { return &stats{} }

func (s *stats) slot(now time.Time) *minute {
	at := now.Unix() / 60
	m := &s.minutes[at%60]
	if m.at != at {
		*m = minute{at: at}
	}
	return m
}

func (s *stats) note(f fate, now time.Time) {
	if f != succeeded && f != skipped {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slot(now).processed++
}

func (s *stats) handledIn(messages int, took time.Duration, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.slot(now)
	m.handled += int64(messages)
	m.handler += took
}

// figures is the queue's part of workers.stats. standsAt is left out when it is
// empty: nothing waits in Kafka.
func (s *stats) figures(lag int64, standsAt string, now time.Time) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	var processed, handled int64
	var took time.Duration
	oldest := now.Unix()/60 - 60
	for i := range s.minutes {
		if m := &s.minutes[i]; m.at > oldest {
			processed += m.processed
			handled += m.handled
			took += m.handler
		}
	}
	average := 0.0
	if handled > 0 {
		average = float64(took.Microseconds()) / 1000 / float64(handled)
	}
	figures := map[string]any{"processed_hour": processed, "handler_ms_avg": average, "lag": lag}
	if standsAt != "" {
		figures["stands_at"] = standsAt
	}
	return figures
}
