package outbox

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given { // a history takes a good part of a second; -rapid.checks asks for more
		if err := flag.Set("rapid.checks", "15"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
