package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const module = "github.com/claimq/claimq"

// A layer says what one part of the tree may import of claimq itself.
type layer struct {
	// packages are patterns of path.Match, relative to the module. The first layer
	// that has a package decides.
	packages []string
	// may are patterns too; a package that no pattern names may not be imported.
	may []string
	// testsMay is what its test files may import besides.
	testsMay []string
	// why is told with a violation.
	why string
}

// tools start servers, measure or demonstrate. They stand beside the product and
// nothing that a user links may need them.
var tools = []string{"internal/local*", "internal/*test", "internal/demo", "internal/bench", "internal/e2e", "internal/cmd/*"}

// everything but the commands, which nobody imports.
var everything = []string{
	"claimqtest", "consumer", "dedup", "delayq", "dlq", "outbox", "target", "migrations", "deploy/*", "internal/*",
}

// layers is the tree, from the bottom up.
var layers = []layer{
	{packages: []string{"deploy/*"}, why: "deploy holds files for people and their embedding"},
	{packages: []string{"migrations"}, may: []string{"internal/*"}, why: "the schema is below everything that uses it"},
	{packages: []string{"dedup"}, may: []string{"internal/*"}, why: "dedup is usable alone, from any pgx transaction"},
	{
		packages: []string{"delayq", "dlq", "outbox", "target"}, may: []string{"dedup", "internal/*"},
		// What one of them stores the others read: in SQL, and so in tests.
		testsMay: []string{"delayq", "dlq", "outbox"},
		why:      "delayq, dlq, outbox and target know dedup and not one another: the consumer joins them",
	},
	{
		packages: []string{"consumer"}, may: []string{"dedup", "delayq", "dlq", "outbox", "target", "migrations", "internal/*"},
		why: "the consumer is the top of the library",
	},
	{packages: []string{"claimqtest"}, may: everything, why: "claimqtest is for tests, above everything"},
	{packages: []string{"cmd/claimq"}, may: []string{"cmd/claimq/cli"}, why: "main is a stub over the importable command"},
	{packages: []string{"cmd/claimq/cli"}, may: everything, why: "the command is above everything"},
	{packages: []string{"docs"}, testsMay: []string{"cmd/claimq/cli"}, why: "the pages' tests use the command as people do"},

	{
		packages: []string{"internal/demo", "internal/bench", "internal/e2e", "internal/cmd/*", "internal/archtest"}, may: everything,
		testsMay: []string{"cmd/claimq/cli"}, why: "it drives the whole of claimq",
	},
	{packages: []string{"internal/pgtest"}, may: []string{"migrations", "internal/*"}, why: "it makes schemas for tests"},
	{packages: []string{"internal/localkafka"}, may: []string{"deploy/kafka", "internal/local*"}, why: "it runs what deploy/kafka describes"},
	{packages: []string{"internal/claimsimport"}, may: []string{"dedup", "internal/*"}, why: "it writes dedup's claims"},
	{packages: []string{"internal/keystry"}, may: []string{"dedup", "internal/*"}, why: "it tries dedup's rules on a topic"},
	{packages: []string{"internal/*"}, may: []string{"internal/*"}, why: "internal packages serve the public ones and know none of them"},
}

// toolUsers may import the tools; everybody else ships without them.
var toolUsers = append([]string{"claimqtest", "cmd/claimq/cli"}, tools...)

// A module that only tests may need. kafkaFake is one that the demo and the
// benchmark need as well: their Kafka runs in the process.
var (
	testLibraries = []string{
		"testing", "testing/*", "pgregory.net/rapid", "go.uber.org/goleak", "github.com/google/go-cmp/*",
		"github.com/twmb/franz-go/pkg/kfake", "github.com/Shopify/toxiproxy/*", "github.com/anishathalye/porcupine",
	}
	kafkaFake      = "github.com/twmb/franz-go/pkg/kfake"
	kafkaFakeUsers = []string{"internal/demo", "internal/bench"}
)

// testLibraryUsers may import test libraries outside of their _test.go files.
var testLibraryUsers = []string{"claimqtest", "internal/*test"}

// matches reports whether a module-relative or foreign path is one of patterns. A
// star also stands for several path elements when it is the last thing.
func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if matched, err := path.Match(pattern, name); err != nil {
			panic(err) // a pattern of this file is malformed
		} else if matched {
			return true
		}
		prefix, deep := strings.CutSuffix(pattern, "/*")
		return deep && strings.HasPrefix(name, prefix+"/")
	})
}

// importProblems tells what is wrong with from's imports of claimq itself; tests:
// they are its test files' imports.
func importProblems(from string, imports []string, tests bool) (problems []string) {
	at := slices.IndexFunc(layers, func(l layer) bool { return matches(from, l.packages) })
	if at < 0 {
		return []string{fmt.Sprintf("%s has no place in the layers: add it to layers in internal/archtest/layers_test.go, and to depguard in .golangci.yml", from)}
	}
	l := layers[at]
	for _, imported := range imports {
		to, own := strings.CutPrefix(imported, module+"/")
		switch {
		case !own || to == from:
		case tests && (to == "migrations" || matches(to, tools) || matches(to, l.testsMay)):
		case !matches(to, l.may):
			problems = append(problems, fmt.Sprintf("%s imports %s: %s", from, to, l.why))
		case matches(to, tools) && !matches(from, toolUsers) && !tests:
			problems = append(problems, fmt.Sprintf("%s imports %s, which is for development only and would be linked into users' programs", from, to))
		}
	}
	return problems
}

// libraryProblems tells which test libraries from imports outside of its tests.
func libraryProblems(from string, imports []string) (problems []string) {
	if matches(from, testLibraryUsers) {
		return nil
	}
	for _, imported := range imports {
		if imported == kafkaFake && matches(from, kafkaFakeUsers) {
			continue
		}
		if matches(imported, testLibraries) {
			problems = append(problems, fmt.Sprintf("%s imports the test library %s outside of its _test.go files", from, imported))
		}
	}
	return problems
}
