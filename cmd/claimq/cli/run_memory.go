package cli

import (
	"cmp"
	"runtime/debug"

	"github.com/claimq/claimq/consumer"
)

const (
	// processMemory is what a process takes besides what its queues buffer.
	processMemory = 64 << 20
	// memoryFactor is how often what a queue buffers is in memory: once as records, and
	// as much again in fetches, batches and statements that are on their way.
	memoryFactor = 2
	// defaultBuffered is the consumer's.
	defaultBuffered = 64 << 20
	// memoryVariable is the Go runtime's own setting, which rules when it is set.
	memoryVariable = "GOMEMLIMIT"
)

// memoryLimit is what the runtime should keep the process below: left to itself it
// collects garbage when there is as much of it as there is of everything else.
func memoryLimit(queues []consumer.Config) int64 {
	limit := int64(processMemory)
	for i := range queues {
		limit += memoryFactor * int64(cmp.Or(queues[i].MaxBufferedBytes, defaultBuffered))
	}
	return limit
}

// limitMemory sets the limit unless the environment does. It is a soft one: a
// process that needs more gets it, and spends more time on collecting.
func (r *runner) limitMemory() {
	if value, set := r.env.lookup(memoryVariable); set && value != "" {
		return
	}
	debug.SetMemoryLimit(memoryLimit(r.queues))
}
