package cli

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write generated pages and golden files instead of comparing")

const (
	referencePage = "../../../docs/configuration.md"
	beginFields   = "<!-- fields: written by go test ./cmd/claimq/cli -run TestTheReferencePage -update -->\n"
	endFields     = "<!-- end of fields -->\n"
)

// fieldComments are the comments of the fields of all structs in a file, by the
// struct's name and the field's.
func fieldComments(t *testing.T, files ...string) map[string]string {
	t.Helper()
	comments := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			spec, ok := node.(*ast.TypeSpec)
			if !ok {
				return true
			}
			structure, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range structure.Fields.List {
				if field.Tag != nil {
					comments[spec.Name.Name+"."+field.Names[0].Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
				}
			}
			return true
		})
	}
	return comments
}

// typeWord names a field's type on the page.
func typeWord(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Secret]():
		return "secret"
	case reflect.TypeFor[Duration]():
		return "duration"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[Strings]():
		return "list"
	case reflect.TypeFor[Sources]():
		return "sources"
	}
	switch t = behind(t); t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Int:
		return "int"
	case reflect.Float64:
		return "number"
	case reflect.String:
		return "text"
	case reflect.Map:
		return "names and texts"
	}
	return "list of sections"
}

// describe writes the tables of a section and of those in it.
func describe(t *testing.T, out *strings.Builder, path string, section reflect.Type, comments map[string]string) {
	t.Helper()
	var below []func()
	wroteHeader := false
	for field := range section.Fields() {
		name := field.Tag.Get("koanf")
		if name == "" {
			continue
		}
		comment := comments[section.Name()+"."+field.Name]
		if comment == "" {
			t.Errorf("%s.%s has no comment, so it would stand on the page without a word", section.Name(), field.Name)
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		inner := behind(field.Type)
		switch {
		case inner.Kind() == reflect.Map && inner.Elem().Kind() == reflect.Struct:
			at, inner = at+".NAME", inner.Elem()
		case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct:
			at, inner = at+"[]", inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			below = append(below, func() {
				fmt.Fprintf(out, "\n### `%s`\n\n%s\n", at, comment)
				describe(t, out, at, inner, comments)
			})
			continue
		}
		if !wroteHeader {
			out.WriteString("\n| field | type | |\n|---|---|---|\n")
			wroteHeader = true
		}
		fmt.Fprintf(out, "| `%s` | %s | %s |\n", name, typeWord(field.Type), strings.ReplaceAll(comment, "|", `\|`))
	}
	for _, write := range below {
		write()
	}
}

func TestTheReferencePageHasEveryFieldAndNoOther(t *testing.T) {
	t.Parallel()
	var fields strings.Builder
	describe(t, &fields, "", reflect.TypeFor[Config](), fieldComments(t, "config.go", "config_queue.go"))
	text, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), beginFields)
	_, after, closed := strings.Cut(rest, endFields)
	if !found || !closed {
		t.Fatalf("%s has lost the marks between which the fields are", referencePage)
	}
	want := before + beginFields + fields.String() + "\n" + endFields + after
	if *update {
		if err := os.WriteFile(referencePage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("%s does not say what the comments in config.go and config_queue.go say; run this test with -update (-comments +page):\n%s", referencePage, diff)
	}
}
