package cli

import (
	"testing"
	"time"
)

// What an operator's rights are for, and what a reader's: every command beside
// `run` works with one of them.
func TestAnOperatorsRightsAreEnoughForTheCommands(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.stand(1, 0, 4)
	f.variables = append(f.variables, "CLAIMQ_DSN="+login(t, f.db, "operator"))
	list := writeFile(t, "done.txt", "o-1\no-2\n")
	for _, args := range [][]string{
		{"status"},
		{"position", "show"},
		{"position", "set", "-q", "q", "-p", "0", "--to", "earliest", "--why", "x"},
		{"claims", "import", "-q", "q", list},
		{"claims", "show", "-q", "q", "o-1"},
		{"claims", "forget", "-q", "q", "o-1", "--why", "x"},
	} {
		f.mustRun(args...)
	}
}

func TestAReaderSeesAndChangesNothing(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.Now = time.Now
	f.stand(1, 0, 4)
	list := writeFile(t, "done.txt", "o-1\no-2\n")
	f.mustRun("claims", "import", "-q", "q", list)
	f.variables = append(f.variables, "CLAIMQ_DSN="+login(t, f.db, "reader"))
	for _, args := range [][]string{
		{"status"},
		{"position", "show"},
		{"position", "set", "-q", "q", "-p", "0", "--to", "earliest", "--dry-run"},
		{"claims", "show", "-q", "q", "o-1"},
	} {
		f.mustRun(args...)
	}
	for _, args := range [][]string{
		{"position", "set", "-q", "q", "-p", "0", "--to", "earliest", "--why", "x"},
		{"claims", "import", "-q", "q", list},
		{"claims", "forget", "-q", "q", "o-1", "--why", "x"},
	} {
		wantAll(t, f.refuse(ExitFailed, args...), "permission denied")
	}
	if n := f.nexts()[0]; n != 4 {
		t.Errorf("the position is %d, want 4", n)
	}
}
