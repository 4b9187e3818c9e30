package demo_test

import (
	"testing"

	"github.com/claimq/claimq/internal/demo"
)

func TestASmallRunHolds(t *testing.T) {
	t.Parallel()
	account, err := demo.Run(t.Context(), demo.Config{Orders: 2000, Seed: 7, Worker: worker, Progress: demo.NewProgress(testWriter{t}, false)})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", account)
	for _, broken := range account.Broken {
		t.Error(broken)
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(line []byte) (int, error) {
	w.t.Logf("%s", line)
	return len(line), nil
}
