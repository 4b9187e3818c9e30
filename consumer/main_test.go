package consumer_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs more tests at once than there are processors: nearly all of their
// time is waiting, for Postgres and for clocks. No goroutine may be left.
func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = flag.Set("test.parallel", "8")
	}
	goleak.VerifyTestMain(m)
}
