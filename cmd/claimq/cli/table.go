package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// A table is printed with its columns aligned by characters and two spaces
// between them; cells hold no line breaks.
type table struct {
	header []string
	rows   [][]string
	right  map[int]bool
}

func newTable(header ...string) *table { return &table{header: header, right: map[int]bool{}} }

// alignRight sets columns of numbers, counted from 0, to the right.
func (t *table) alignRight(columns ...int) *table {
	for _, column := range columns {
		t.right[column] = true
	}
	return t
}

// row adds a line; cells are printed as fmt.Sprint does, and an empty one as "-".
func (t *table) row(cells ...any) {
	texts := make([]string, len(t.header))
	for i := range texts {
		texts[i] = "-"
		if i < len(cells) {
			if text := fmt.Sprint(cells[i]); text != "" {
				texts[i] = oneLine(text)
			}
		}
	}
	t.rows = append(t.rows, texts)
}

// printTable writes the table to Stdout.
func (e *Env) printTable(t *table) error {
	widths := make([]int, len(t.header))
	lines := append([][]string{t.header}, t.rows...)
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				text.WriteString(pad + cell + "  ")
			} else {
				text.WriteString(cell + pad + "  ")
			}
		}
		out.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	_, err := fmt.Fprint(e.Stdout, out.String())
	return err
}

// printJSON writes a value to Stdout, indented, with a line break at its end.
func (e *Env) printJSON(value any) error {
	encoder := json.NewEncoder(e.Stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// printf writes to Stdout.
func (e *Env) printf(format string, args ...any) {
	// A reader that has gone away is no failure of the command.
	_, _ = fmt.Fprintf(e.Stdout, format, args...)
}

// oneLine keeps what a cell holds from breaking the table or driving the
// terminal: control characters become the replacement character.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return '\uFFFD'
		}
		return r
	}, text)
}
