package cli

import (
	"errors"
	"fmt"
	"testing"
)

func TestATableIsAligned(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	rows := newTable("QUEUE", "READY", "OWNER").alignRight(1)
	rows.row("orders", 12, "päyments")
	rows.row("x", 1234567, "")
	rows.row("evil\x1b[31m\nname")
	if err := env.printTable(rows); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"QUEUE             READY  OWNER\n" +
		"orders               12  päyments\n" +
		"x               1234567  -\n" +
		"evil\uFFFD[31m\uFFFDname        -  -\n"
	if got := env.stdout.String(); got != want {
		t.Errorf("the table is\n%s\nand not\n%s", got, want)
	}
}

func TestJSONKeepsWhatHTMLWouldEscape(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	if err := env.printJSON(map[string]string{"a": "<b> & c"}); err != nil {
		t.Fatal(err)
	}
	if got := env.stdout.String(); got != "{\n  \"a\": \"<b> & c\"\n}\n" {
		t.Errorf("%q", got)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for _, test := range []struct {
		err  error
		code int
	}{
		{nil, ExitOK},
		{cause, ExitFailed},
		{exitWith(ExitPartial, cause), ExitPartial},
		{fmt.Errorf("wrapped: %w", exitWith(ExitNothing, nil)), ExitNothing},
		{usageError("no"), ExitUsage},
		{configError(cause), ExitConfig},
		{errors.Join(cause, configError(cause)), ExitConfig},
	} {
		if got := exitCode(test.err); got != test.code {
			t.Errorf("exitCode(%v) = %d, want %d", test.err, got, test.code)
		}
	}
	if !errors.Is(exitWith(ExitPartial, cause), cause) {
		t.Error("the cause is lost")
	}
}

func TestErrorsAreToldALineEach(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	env.report(errors.Join(errors.New("one"), errors.New("two\nand more")))
	env.report(exitWith(ExitNothing, nil)) // has told everything already
	env.report(nil)
	if got := env.stderr.String(); got != "claimq: one\nclaimq: two\nclaimq: and more\n" {
		t.Errorf("%q", got)
	}
}

func TestTheEnvironmentsLastSettingCounts(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t, "A=1", "AB=2", "A=3", "C=", "D")
	for name, want := range map[string]string{"A": "3", "AB": "2", "C": ""} {
		if got, ok := env.lookup(name); !ok || got != want {
			t.Errorf("%s = %q, %v", name, got, ok)
		}
	}
	for _, name := range []string{"B", "D", ""} {
		if got, ok := env.lookup(name); ok {
			t.Errorf("%s = %q", name, got)
		}
	}
}
