package consumer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSQLNamesBecomeTypedParameters(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, statement, want string
		each                  bool
		names                 []string
	}{
		{
			"batch", "insert into o select * from unnest(@ids, @values)",
			"insert into o select * from unnest(($1::text[]), ($2::jsonb[]))", false,
			[]string{"ids", "values"},
		},
		{
			"each", "insert into o values (@id, @value->>'total')",
			"insert into o values (($1::text), ($2::jsonb)->>'total')", true,
			[]string{"id", "value"},
		},
		{
			"a name twice is one parameter", "insert into o values (@id, @value, @id)",
			"insert into o values (($1::text), ($2::jsonb), ($1::text))", true,
			[]string{"id", "value"},
		},
		{
			"names in literals, comments and quoted identifiers stay",
			"insert into \"@id\" /* @key */ values ('@id', E'\\'@id', $x$@id$x$, @id) -- @topic",
			"insert into \"@id\" /* @key */ values ('@id', E'\\'@id', $x$@id$x$, ($1::text)) -- @topic", true,
			[]string{"id"},
		},
		{
			"operators with @ stay", "select 1 where @values[1] @> '{}' and '{}' <@ @values[1] and @ -1 = 1",
			"select 1 where ($1::jsonb[])[1] @> '{}' and '{}' <@ ($1::jsonb[])[1] and @ -1 = 1", false,
			[]string{"values"},
		},
		{
			"numbers in literals stay", "select '$1', @ids",
			"select '$1', ($1::text[])", false,
			[]string{"ids"},
		},
		{
			"a name at the end", "select @raw", "select ($1::bytea)", true, []string{"raw"},
		},
		{
			"a name before a cast", "select @partition::text", "select ($1::int4)::text", true, []string{"partition"},
		},
		{
			"comments and a parenthesis in front", "-- orders\n/* all */ (select @offset)",
			"-- orders\n/* all */ (select ($1::int8))", true,
			[]string{"offset"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := rewriteSQL(tt.statement, tt.each)
			if err != nil {
				t.Fatalf("rewriteSQL: %v", err)
			}
			if diff := cmp.Diff(tt.want, got.sql); diff != "" {
				t.Errorf("the rewritten text (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.names, got.names); diff != "" {
				t.Errorf("the names (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSQLRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		statement    SQLStatement
		line, column int
		problem      string // a part of it
	}{
		{"nothing", SQLStatement{}, 1, 1, `begins with ""`},
		{"a comment only", SQLStatement{Statement: "-- todo later"}, 1, 14, `begins with ""`},
		{"transaction control", SQLStatement{Statement: "commit"}, 1, 1, `begins with "commit"`},
		{"a session setting", SQLStatement{Statement: "  SET lock_timeout = 0"}, 1, 3, `begins with "set"`},
		{"an unknown name", SQLStatement{Statement: "insert into o\nvalues (@idd)", Each: true}, 2, 9, "did you mean @id?"},
		{"a name in upper case", SQLStatement{Statement: "select @ID", Each: true}, 1, 8, "@ID is unknown"},
		{"one message's name in a batch", SQLStatement{Statement: "insert into o values (@id)"}, 1, 23, "it is @ids here"},
		{"an array's name in the Each form", SQLStatement{Statement: "select @headers_list", Each: true}, 1, 8, "it is @headers here"},
		{"a name behind characters of several bytes", SQLStatement{Statement: "select 'äöü', @ofset", Each: true}, 1, 15, "did you mean @offset?"},
		{"a parameter by number", SQLStatement{Statement: "insert into o values ($2, @id)", Each: true}, 0, 0, "$2 is a parameter without a name"},
		{"a batch that takes nothing", SQLStatement{Statement: "insert into o values (1)"}, 0, 0, "takes nothing of the messages"},
		{"NUL", SQLStatement{Statement: "select '\x00', @ids"}, 0, 0, "holds a NUL"},
		{"bytes that are not UTF-8", SQLStatement{Statement: "select '\xff', @ids"}, 0, 0, "not UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := SQL(tt.statement)
			var refused *SQLError
			if !errors.As(err, &refused) {
				t.Fatalf("SQL = %v, want a *SQLError", err)
			}
			if !strings.Contains(refused.Problem, tt.problem) {
				t.Errorf("the problem is %q, want it to hold %q", refused.Problem, tt.problem)
			}
			if refused.Line != tt.line || refused.Column != tt.column {
				t.Errorf("it is at line %d, column %d, want %d, %d: %v", refused.Line, refused.Column, tt.line, tt.column, refused)
			}
		})
	}
}

func TestSQLDollarInIdentifierIsNoParameter(t *testing.T) {
	t.Parallel()
	if _, err := SQL(SQLStatement{Statement: "insert into legacy$1 select unnest(@ids)"}); err != nil {
		t.Errorf("SQL: %v", err)
	}
}

// Whatever stands between names is passed on byte for byte.
func TestSQLKeepsAllElse(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{"@id", "@value", " ", "\n", "'@id'", `"@x"`, "a", "é", "1", "->>", "@>", "(", ")", "e'\\''", "/*@id*/", "--@id\n", "$q$@id$q$", "@@", "::int"})
	rapid.Check(t, func(t *rapid.T) {
		statement := "select " + strings.Join(rapid.SliceOf(piece).Draw(t, "pieces"), "")
		got, err := rewriteSQL(statement, true)
		if err != nil {
			if _, refused := errors.AsType[*SQLError](err); !refused {
				t.Fatalf("rewriteSQL(%q): %v", statement, err)
			}
			return
		}
		back := got.sql
		for i, name := range got.names {
			number := string(rune('1' + i))
			back = strings.ReplaceAll(back, "($"+number+"::"+findParam(name, true).sqlType+")", "@"+name)
		}
		if back != statement {
			t.Fatalf("rewriteSQL(%q) = %q, which reads back as %q", statement, got.sql, back)
		}
	})
}

// A place that the server counts in the rewritten text is found in the source.
func TestSQLPlacesAreFoundInTheSource(t *testing.T) {
	t.Parallel()
	source := "insert into ö (a, b)\nselect nope, @id, wrong(@value), typo"
	r, err := rewriteSQL(source, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"insert", "(a, b)", "nope", "wrong", "typo"} {
		before, _, _ := strings.Cut(r.sql, word)
		position := len([]rune(before)) + 1
		if got, want := r.sourceAt(position), strings.Index(source, word); got != want {
			t.Errorf("%q is found at byte %d of the source, want %d", word, got, want)
		}
	}
	before, _, _ := strings.Cut(r.sql, "::jsonb")
	inside := len([]rune(before)) + 1
	if got, want := r.sourceAt(inside), strings.Index(source, "@value"); got != want {
		t.Errorf("the inside of a parameter is found at byte %d of the source, want its name at %d", got, want)
	}
	if got := r.sourceAt(len(r.sql) + 10); got != len(source) {
		t.Errorf("a place behind the end is found at byte %d, want %d", got, len(source))
	}
}
