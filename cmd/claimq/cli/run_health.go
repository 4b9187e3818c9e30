package cli

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/claimq/claimq/consumer"
)

// A problem is one thing that keeps a process from being ready.
type problem struct {
	// Queue is the queue's name, empty for what concerns all.
	Queue   string `json:"queue,omitempty"`
	Problem string `json:"problem"`
}

// runHealth is what a process knows of how it is doing. Safe for concurrent use.
type runHealth struct {
	mu     sync.Mutex
	waits  map[string]error                  // what is waited for and why
	queues map[string]func() consumer.Health // those that run
	held   map[string]error                  // those that do not, and why
	outbox string
	ended  bool
}

// errStarting is why a queue does not run at first.
var errStarting = errors.New("it is starting")

func newRunHealth(queues []string) *runHealth {
	h := &runHealth{waits: map[string]error{}, queues: map[string]func() consumer.Health{}, held: map[string]error{}}
	for _, name := range queues {
		h.held[name] = errStarting
	}
	return h
}

// waiting notes that something cannot be reached.
func (h *runHealth) waiting(what string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits[what] = err
}

// arrived notes that it can.
func (h *runHealth) arrived(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waits, what)
}

// queueRuns notes that a queue runs, and how to ask it.
func (h *runHealth) queueRuns(name string, ask func() consumer.Health) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, name)
	h.queues[name] = ask
}

// queueWaits notes that a queue does not run, and why.
func (h *runHealth) queueWaits(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.queues, name)
	h.held[name] = err
}

// outboxIs notes what is wrong with the outbox; "" when nothing is.
func (h *runHealth) outboxIs(problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outbox = problem
}

// stopping notes that the process is about to end.
func (h *runHealth) stopping() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
}

// problems returns all that keeps the process from being ready, in order.
func (h *runHealth) problems() (problems []problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	add := func(queue, text string) { problems = append(problems, problem{Queue: queue, Problem: text}) }
	if h.ended {
		add("", "the process is stopping")
	}
	for _, what := range slices.Sorted(maps.Keys(h.waits)) {
		add("", what+" cannot be reached: "+h.waits[what].Error())
	}
	for name, err := range h.held {
		add(name, "the queue does not run: "+err.Error())
	}
	for name, ask := range h.queues {
		for _, text := range ask().Problems {
			add(name, text)
		}
	}
	if h.outbox != "" {
		add("", h.outbox)
	}
	slices.SortStableFunc(problems, func(a, b problem) int { return cmp.Compare(a.Queue, b.Queue) })
	return problems
}
