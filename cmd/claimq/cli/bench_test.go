package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/claimq/claimq/internal/bench"
)

func TestBenchRefusesWhatItCannotMeasure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flag, names string }{
		{"--records=0", "--records"},
		{"--repeats=1", "--repeats"},
		{"--handler=fast", "sql, batch, pipelined, one"},
		{"--brokers=localhost:1", "--dsn"},
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), []string{"bench", c.flag}, Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Environ: func() []string { return nil }})
		if code != ExitUsage || !strings.Contains(errs.String(), c.names) {
			t.Errorf("%s: exit code %d and %q, want %d and a word on %s", c.flag, code, errs.String(), ExitUsage, c.names)
		}
	}
}

func TestBenchStartsItsOwnServers(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	code := Run(t.Context(), []string{"bench", "--records=1000", "--handler=sql", "--runs=1", "--single=3", "--json"},
		Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Environ: func() []string { return nil }})
	if code != ExitOK {
		t.Fatalf("exit code %d\n%s", code, errs.String())
	}
	var report bench.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if report.Records != 1000 || len(report.Rows) != 2 {
		t.Errorf("%+v", report)
	}
}
