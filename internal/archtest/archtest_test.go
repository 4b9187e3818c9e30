package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
}

// packages asks the go command for the module's packages, once for all tests.
var packages = sync.OnceValues(func() ([]listed, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		if ended, ok := errors.AsType[*exec.ExitError](err); ok {
			return nil, errors.New(string(ended.Stderr))
		}
		return nil, err
	}
	var all []listed
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p listed
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
})

func eachPackage(t *testing.T, check func(name string, p listed) []string) {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	if len(all) < 10 {
		t.Fatalf("the go command lists %d packages: this test looks at the wrong tree", len(all))
	}
	for _, p := range all {
		for _, problem := range check(strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/"), p) {
			t.Error(problem)
		}
	}
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	eachPackage(t, func(name string, p listed) []string { return importProblems(name, p.Imports, false) })
}

func TestTestsImportNothingAboveTheirPackage(t *testing.T) {
	t.Parallel()
	eachPackage(t, func(name string, p listed) []string {
		return append(importProblems(name, p.TestImports, true), importProblems(name, p.XTestImports, true)...)
	})
}

func TestNoTestLibraryInProduction(t *testing.T) {
	t.Parallel()
	eachPackage(t, func(name string, p listed) []string { return libraryProblems(name, p.Imports) })
}

func TestImportRulesRefuse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		from, imports string
		tests         bool
		refused       bool
	}{
		{from: "dedup", imports: "consumer", refused: true},
		{from: "dedup", imports: "delayq", refused: true},
		{from: "dedup", imports: "migrations", refused: true},
		{from: "dedup", imports: "migrations", tests: true},
		{from: "dedup", imports: "internal/pgtext"},
		{from: "dedup", imports: "internal/pgtest", refused: true},
		{from: "dedup", imports: "internal/pgtest", tests: true},
		{from: "dedup", imports: "consumer", tests: true, refused: true},
		{from: "delayq", imports: "dedup"},
		{from: "delayq", imports: "dlq", refused: true},
		{from: "delayq", imports: "dlq", tests: true},
		{from: "delayq", imports: "consumer", tests: true, refused: true},
		{from: "outbox", imports: "delayq", refused: true},
		{from: "dlq", imports: "outbox", refused: true},
		{from: "target", imports: "consumer", refused: true},
		{from: "consumer", imports: "outbox"},
		{from: "consumer", imports: "cmd/claimq/cli", refused: true},
		{from: "consumer", imports: "internal/demo", refused: true},
		{from: "internal/pgtext", imports: "dedup", refused: true},
		{from: "internal/keystry", imports: "dedup"},
		{from: "internal/keystry", imports: "consumer", refused: true},
		{from: "internal/demo", imports: "consumer"},
		{from: "cmd/claimq", imports: "consumer", refused: true},
		{from: "cmd/claimq/cli", imports: "internal/demo"},
		{from: "somewhere/new", imports: "dedup", refused: true},
	} {
		problems := importProblems(test.from, []string{"fmt", module + "/" + test.imports}, test.tests)
		if got := len(problems) > 0; got != test.refused {
			t.Errorf("%s imports %s (tests: %v): refused %v, want %v: %v", test.from, test.imports, test.tests, got, test.refused, problems)
		}
	}
}

func TestLibraryRulesRefuse(t *testing.T) {
	t.Parallel()
	imports := []string{"testing", "testing/fstest", "pgregory.net/rapid", "github.com/google/go-cmp/cmp", kafkaFake, "fmt"}
	for from, want := range map[string]int{
		"dedup": 5, "cmd/claimq/cli": 5, "internal/demo": 4, "internal/pgtest": 0, "internal/kafkatest": 0, "claimqtest": 0,
	} {
		if diff := cmp.Diff(want, len(libraryProblems(from, imports))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", from, diff)
		}
	}
}
