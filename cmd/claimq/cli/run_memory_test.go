package cli

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/claimq/claimq/consumer"
)

//nolint:paralleltest // the limit is the process's
func TestRunLimitsMemoryByWhatItsQueuesBuffer(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	queues := []consumer.Config{{}, {MaxBufferedBytes: 10 << 20}}
	for environment, want := range map[string]int64{
		"":                   64<<20 + 2*64<<20 + 2*10<<20,
		"GOMEMLIMIT=":        64<<20 + 2*64<<20 + 2*10<<20,
		"GOMEMLIMIT=1GiB":    math.MaxInt64, // the runtime has read it already
		"ANOTHER_VARIABLE=1": 64<<20 + 2*64<<20 + 2*10<<20,
	} {
		debug.SetMemoryLimit(math.MaxInt64)
		r := &runner{env: &Env{Environ: func() []string { return []string{environment} }}, queues: queues}
		r.limitMemory()
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("%q: the limit is %d, want %d", environment, got, want)
		}
	}
}
