// Package docs_test tests the pages: that their programs compile, their
// configurations are accepted, their links lead somewhere, and that the page about
// dependencies tells of all of them.
package docs_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/claimq/claimq/cmd/claimq/cli"
)

const module = "github.com/claimq/claimq"

// pages returns every Markdown page of the repository by its path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	root := os.DirFS("..")
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != ".":
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := fs.ReadFile(root, path)
		found[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found["README.md"] == "" {
		t.Fatal("there is no README.md above this package")
	}
	return found
}

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// blocks returns the code blocks of a language that contain a mark.
func blocks(page, language, mark string) (found []string) {
	for _, block := range fence.FindAllStringSubmatch(page, -1) {
		if block[1] == language && strings.Contains(block[2], mark) {
			found = append(found, block[2])
		}
	}
	return found
}

func TestProgramsCompile(t *testing.T) {
	t.Parallel()
	programs := 0
	for name, page := range pages(t) {
		for i, program := range blocks(page, "go", "package main") {
			programs++
			dir := t.TempDir()
			file := filepath.Join(dir, "main.go")
			if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
				t.Fatal(err)
			}
			build := exec.Command("go", "vet", file)
			build.Dir = ".."
			if said, err := build.CombinedOutput(); err != nil {
				t.Errorf("%s, program %d: %v\n%s", name, i+1, err, said)
			}
			formatted, err := exec.Command("gofmt", "-l", file).CombinedOutput()
			if err != nil || len(formatted) > 0 {
				t.Errorf("%s, program %d is not formatted as gofmt does: %v %s", name, i+1, err, formatted)
			}
		}
	}
	if programs == 0 {
		t.Error("no page has a program: this test looks for the wrong thing")
	}
}

// check runs `claimq config check` on a configuration.
func check(t *testing.T, configuration string) (code int, said string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "claimq.yaml")
	// What a page takes from a file of secrets, it has here.
	configuration = strings.ReplaceAll(configuration, "/run/secrets/", dir+"/")
	for path, text := range map[string]string{file: configuration, filepath.Join(dir, "database-password"): "secret"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	code = cli.Run(context.Background(), []string{"config", "check", "-c", file}, cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Environ: func() []string { return nil }, Now: time.Now,
	})
	return code, errs.String()
}

func TestConfigurationsAreAccepted(t *testing.T) {
	t.Parallel()
	configurations := 0
	for name, page := range pages(t) {
		for i, configuration := range blocks(page, "yaml", "queues:") {
			configurations++
			if code, said := check(t, configuration); code != 0 {
				t.Errorf("%s, configuration %d is refused with exit code %d:\n%s", name, i+1, code, said)
			}
		}
	}
	if configurations == 0 {
		t.Error("no page has a configuration: this test looks for the wrong thing")
	}
}

func TestStatementsTakeWhatThePageSays(t *testing.T) {
	t.Parallel()
	const queue = `
database: {dsn: postgres://localhost/shop}
kafka: {brokers: [localhost:9092]}
queues:
  orders:
    topics: [orders]
    id: header:idempotency-key
    handler: {sql: "insert into t select NAME", each: EACH}
`
	rows := regexp.MustCompile("(?m)^\\| `(@\\w+)` \\| `(@\\w+)` \\|").FindAllStringSubmatch(pages(t)["docs/configuration.md"], -1)
	if len(rows) < 10 {
		t.Fatalf("%d rows were found: this test looks for the wrong thing", len(rows))
	}
	for _, row := range append(rows, []string{"", "@nothing", "@nothings"}) {
		for each, name := range map[string]string{"true": row[1], "false": row[2]} {
			code, said := check(t, strings.NewReplacer("NAME", name, "EACH", each).Replace(queue))
			if known := code == 0; known == strings.HasPrefix(name, "@nothing") {
				t.Errorf("%s with each: %s: exit code %d\n%s", name, each, code, said)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the headings of a page as links name them.
func anchors(page string) (names []string) {
	for _, found := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		name := dropped.ReplaceAllString(strings.ToLower(found[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	all := pages(t)
	links := 0
	for name, page := range all {
		for _, found := range link.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(found[1], "#")
			path := name
			if file != "" {
				path = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s: the link %s leads nowhere: %v", name, found[1], err)
			} else if target, isPage := all[path]; anchor != "" && isPage && !slices.Contains(anchors(target), anchor) {
				t.Errorf("%s: the link %s leads to no heading; there are %q", name, found[1], anchors(target))
			}
		}
	}
	if links < 10 {
		t.Errorf("%d links were found: this test looks for the wrong thing", links)
	}
}

func TestEveryPageIsInTheIndex(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for name := range all {
		if filepath.Dir(name) == "docs" && name != "docs/README.md" && !strings.Contains(all["docs/README.md"], "("+filepath.Base(name)+")") {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
	}
}

// goList runs go list in the module and returns its lines.
func goList(t *testing.T, arguments ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, arguments...)...)
	cmd.Dir = ".."
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, said.String())
	}
	return strings.Fields(string(out))
}

func TestTheDependenciesPageIsComplete(t *testing.T) {
	t.Parallel()
	imports := goList(t, "-f", `{{range .Imports}}{{println .}}{{end}}{{range .TestImports}}{{println .}}{{end}}{{range .XTestImports}}{{println .}}{{end}}`, "./...")
	slices.Sort(imports)
	imports = slices.DeleteFunc(slices.Compact(imports), func(path string) bool {
		first, _, _ := strings.Cut(path, "/")
		return !strings.Contains(first, ".") || strings.HasPrefix(path, module+"/")
	})
	used := goList(t, append([]string{"-f", `{{with .Module}}{{.Path}}{{end}}`}, imports...)...)
	slices.Sort(used)
	used = slices.Compact(used)

	var told []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(pages(t)["docs/dependencies.md"], -1) {
		told = append(told, row[1])
	}
	slices.Sort(told)
	if diff := cmp.Diff(used, told); diff != "" {
		t.Errorf("docs/dependencies.md does not tell of the modules that are imported (-imported +told):\n%s", diff)
	}
}
