// Package pgtext makes texts that come from outside storable in Postgres, which refuses NUL (22021, 22P05) and anything that is not UTF-8 in a text column.
package pgtext

import (
	"strings"
	"unicode/utf8"
)

// truncated marks a text of which the end is missing.
const truncated = " …[truncated]"

// Storable returns a text that a Postgres text column takes, for error messages and other diagnostics, in at most maxBytes bytes. NUL and bytes that are not
// UTF-8 are shown as \x00, in two lower-case hex digits; all else stays as it is, so the result is for reading and cannot be turned back. A text that is too
// long ends at a whole character, or a whole escape, and the mark " …[truncated]"; the mark is left out where maxBytes has no room for it.
//
// A text that is fine already is returned itself, without a copy. Storable is what stands between an error message and an INSERT: the failure of a message
// must not fail to be stored because the message was quoted in it.
func Storable(text string, maxBytes int) string {
	if len(text) <= maxBytes && storable(text) {
		return text
	}
	// A long text is not read further than its end can matter: every byte of it becomes one byte at least.
	rest, mark := text, ""
	if maxBytes >= len(truncated) {
		mark = truncated
	}
	var out strings.Builder
	cut := 0 // length of out up to which there is room for the mark
	for len(rest) > 0 {
		piece, size := next(rest)
		if out.Len()+len(piece) > maxBytes {
			return out.String()[:cut] + mark
		}
		out.WriteString(piece)
		if out.Len()+len(mark) <= maxBytes {
			cut = out.Len()
		}
		rest = rest[size:]
	}
	return out.String()
}

func storable(text string) bool {
	return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0
}

// next returns the first character of text as it is stored, and the number of bytes of text that it stands for.
func next(text string) (piece string, size int) {
	r, size := utf8.DecodeRuneInString(text)
	if r == 0 || r == utf8.RuneError && size == 1 {
		const digits = "0123456789abcdef"
		return string([]byte{'\\', 'x', digits[text[0]>>4], digits[text[0]&15]}), 1
	}
	return text[:size], size
}
