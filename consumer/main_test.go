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
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{
		"test.parallel": "8",
		"rapid.checks":  "30", // those that go through Kafka and Postgres take their time
	} {
		if !given[name] {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	goleak.VerifyTestMain(m)
}
