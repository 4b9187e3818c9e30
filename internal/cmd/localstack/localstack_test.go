package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func do(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out.String()
}

// ownStore keeps a developer's running servers out of the test.
func ownStore(t *testing.T) store {
	t.Helper()
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	s, err := openStore()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPostgresStartsOnceAndStopRemovesIt(t *testing.T) { //nolint:paralleltest // ownStore changes the environment
	s := ownStore(t)
	defer func() { _ = run(t.Context(), []string{"stop", "postgres"}, &bytes.Buffer{}) }()
	if out := do(t, "start", "postgres"); !strings.Contains(out, "postgres://") {
		t.Errorf("start says %q", out)
	}
	running, ok, err := s.load("postgres")
	if err != nil || !ok || !running.running() {
		t.Fatalf("what runs is not remembered: %+v (%v)", running, err)
	}
	if out := do(t, "start", "postgres"); !strings.Contains(out, "runs already") || !strings.Contains(out, running.Address) {
		t.Errorf("a second start says %q", out)
	}
	if out := do(t, "status"); !strings.Contains(out, running.Address) || !strings.Contains(out, "kafka does not run") {
		t.Errorf("status says %q", out)
	}
	if out := do(t, "stop", "postgres"); !strings.Contains(out, "stopped") {
		t.Errorf("stop says %q", out)
	}
	if running.running() {
		t.Error("it runs after stop")
	}
	if _, err := os.Stat(running.Dir); err == nil {
		t.Errorf("%s is there after stop", running.Dir)
	}
	if out := do(t, "stop"); strings.Count(out, "does not run") != 2 {
		t.Errorf("a second stop says %q", out)
	}
}

func TestServerThatEndedByItselfIsTold(t *testing.T) { //nolint:paralleltest // ownStore changes the environment
	s := ownStore(t)
	dir := t.TempDir()
	// The number is this test's, whose command line does not mention the directory.
	if err := s.save("kafka", record{Address: "127.0.0.1:1", Dir: dir + "/gone", PIDs: []int{os.Getpid()}}); err != nil {
		t.Fatal(err)
	}
	if out := do(t, "status", "kafka"); !strings.Contains(out, "ended by itself") {
		t.Errorf("status says %q", out)
	}
	if out := do(t, "stop", "kafka"); !strings.Contains(out, "stopped") {
		t.Errorf("stop says %q", out)
	}
}

func TestWrongWordsAreRefusedByName(t *testing.T) { //nolint:paralleltest // ownStore changes the environment
	ownStore(t)
	for _, args := range [][]string{{"start", "oracle"}, {"begin"}, {"start"}, {}} {
		err := run(t.Context(), args, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), "postgres") {
			t.Errorf("%v: the error does not tell what there is: %v", args, err)
		}
	}
}
