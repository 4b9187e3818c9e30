package consumer

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/nearest"
)

// A SQLError says what is wrong with a SQLStatement, and where.
type SQLError struct {
	// Line and Column say where in the statement, from 1, in characters; 0 when it
	// is the statement as a whole.
	Line, Column int
	// Problem says what is wrong and what would be right.
	Problem string
	// Err is the database's error, nil when the text alone was enough to tell.
	Err error
}

func (e *SQLError) Error() string {
	where := "SQL statement"
	if e.Line > 0 {
		where = fmt.Sprintf("SQL statement, line %d, column %d", e.Line, e.Column)
	}
	return where + ": " + e.Problem
}

// Unwrap returns the database's error.
func (e *SQLError) Unwrap() error { return e.Err }

// A rewritten statement has typed positional parameters in place of names.
type rewritten struct {
	source string
	sql    string
	names  []string // by the parameter's number less one
	pieces []sqlPiece
}

// A sqlPiece says that from these bytes on the two texts run alike, up to the next.
type sqlPiece struct{ inSource, inSQL int }

// rewriteSQL puts ($1::type) for each name. The type is said because the server
// could not tell it everywhere: @value->>'a' alone is ambiguous. The parentheses
// keep what follows apart from the type: @values[1] is an element and not a type.
//
// pgx's own lexer finds the names, so that what is inside literals, comments and
// quoted identifiers stays as it is.
func rewriteSQL(source string, each bool) (rewritten, error) {
	if err := checkSQLText(source); err != nil {
		return rewritten{}, err
	}
	r := rewritten{source: source, pieces: []sqlPiece{{}}}
	var out strings.Builder
	at := 0
	for _, n := range namesIn(source) {
		param := findParam(n.name, each)
		if param == nil {
			return rewritten{}, r.errorAt(n.at, unknownName(n.name, each), nil)
		}
		number := slices.Index(r.names, n.name) + 1
		if number == 0 {
			r.names = append(r.names, n.name)
			number = len(r.names)
		}
		out.WriteString(source[at:n.at])
		fmt.Fprintf(&out, "($%d::%s)", number, param.typeIn(each))
		at = n.at + len("@") + len(n.name)
		r.pieces = append(r.pieces, sqlPiece{inSource: at, inSQL: out.Len()})
	}
	out.WriteString(source[at:])
	r.sql = out.String()
	return r, nil
}

// A namedPlace is a name, without its @, and the byte at which its @ stands.
type namedPlace struct {
	name string
	at   int
}

// namesIn returns the names in a text, in order. pgx replaces each by $ and a
// number and leaves all else alone, so the places are where the texts differ.
func namesIn(source string) []namedPlace {
	replaced, _, err := pgx.NamedArgs{}.RewriteQuery(context.Background(), nil, source, nil)
	if err != nil { // NamedArgs that are not strict refuse nothing
		return nil
	}
	var places []namedPlace
	for i, j := 0, 0; i < len(source) && j < len(replaced); {
		if source[i] == replaced[j] {
			i, j = i+1, j+1
			continue
		}
		name := identifier.FindString(source[i+1:])
		places = append(places, namedPlace{name: name, at: i})
		i += 1 + len(name)
		j += 1 + len(digits.FindString(replaced[j+1:]))
	}
	return places
}

var (
	identifier = regexp.MustCompile(`^[A-Za-z0-9_]*`)
	digits     = regexp.MustCompile(`^[0-9]*`)
	// A parameter by number; after a letter the dollar belongs to an identifier.
	numbered = regexp.MustCompile(`(^|[^A-Za-z0-9_$\x{80}-\x{10ffff}])\$([0-9]+)`)
	// What may stand before the first word.
	leading = regexp.MustCompile(`^(?:\s+|--[^\n]*(?:\n|$)|/\*(?s:.*?)\*/|\()*`)
)

const numberedMark = "claimq_numbered_"

var firstWords = []string{"insert", "update", "delete", "merge", "with", "select", "call"}

// checkSQLText refuses what no database needs to be asked about.
func checkSQLText(source string) error {
	if !utf8.ValidString(source) || strings.IndexByte(source, 0) >= 0 {
		return &SQLError{Problem: "the statement is not UTF-8, or holds a NUL"}
	}
	first := leading.FindString(source)
	word := strings.ToLower(identifier.FindString(source[len(first):]))
	r := rewritten{source: source}
	if !slices.Contains(firstWords, word) {
		// Transaction control and session settings are the consumer's.
		return r.errorAt(len(first), fmt.Sprintf("the statement begins with %q; it may begin with %s", word, strings.Join(firstWords, ", ")), nil)
	}
	// A name in place of each number shows which of them the server would take for
	// parameters and which stand in literals.
	marked := numbered.ReplaceAllString(source, "${1}@"+numberedMark+"$2")
	for _, n := range namesIn(marked) {
		if number, ok := strings.CutPrefix(n.name, numberedMark); ok {
			return &SQLError{Problem: fmt.Sprintf("$%s is a parameter without a name: use @%s and the like", number, sqlParams[0].name)}
		}
	}
	return nil
}

func unknownName(name string, each bool) string {
	known := make([]string, 0, len(sqlParams))
	for _, p := range sqlParams {
		known = append(known, p.nameIn(each))
	}
	form := "for a batch"
	if each {
		form = "for one message (Each)"
	}
	if other := findParam(name, !each); other != nil {
		return fmt.Sprintf("@%s does not exist in a statement %s: it is @%s here", name, form, other.nameIn(each))
	}
	return fmt.Sprintf("@%s is unknown; did you mean @%s? A statement %s takes @%s", name, nearest.Of(name, known), form, strings.Join(known, ", @"))
}

// errorAt makes an error that names a byte of the source.
func (r *rewritten) errorAt(at int, problem string, err error) *SQLError {
	before := r.source[:at]
	line := strings.Count(before, "\n") + 1
	column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	return &SQLError{Line: line, Column: column, Problem: problem, Err: err}
}

// sourceAt returns the byte of the source for a place in the rewritten text, which
// the server counts in characters from 1.
func (r *rewritten) sourceAt(position int) int {
	at := len(r.sql)
	for i := range r.sql {
		if position--; position == 0 {
			at = i
			break
		}
	}
	for i, piece := range slices.Backward(r.pieces) {
		if at < piece.inSQL {
			continue
		}
		found := piece.inSource + at - piece.inSQL
		if i+1 < len(r.pieces) { // inside of a parameter: where its name begins
			next := r.pieces[i+1].inSource
			found = min(found, strings.LastIndexByte(r.source[:next], '@'))
		}
		return min(found, len(r.source))
	}
	return 0
}
