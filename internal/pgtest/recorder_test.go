package pgtest_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"
)

// failRecorder keeps the message of a Fatalf and panics in its place.
type failRecorder struct {
	testing.TB
	message string
}

func (r *failRecorder) Helper() {}

func (r *failRecorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	panic(r)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
