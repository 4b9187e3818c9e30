package dedup

import (
	"bytes"
	"slices"
	"sync"
	"unicode/utf8"
)

// canonicalJSON appends to out the canonical text of a JSON value, of which selected (nil: all) is kept and ignored (nil: none) is left out.
// The error is errNotJSON or errTooDeep, and then nothing is appended.
//
// Why not RFC 8785 by a library: it writes numbers as float64 do, so that 9007199254740993 and 9007199254740992 become one, and 1e400000 none; and the decoders
// below it replace bytes that are not UTF-8, and halves of surrogate pairs, by U+FFFD, and drop all but one of repeated members. Each makes one
// fingerprint of different payloads. A wrapper would have to be this parser. What is kept of the RFC is the idea: sorted members, no white space, one spelling.
//
// Two values have one canonical text when, and only when, they are equal in this sense:
//
//   - objects have the same members, in any order; members of one name are all kept, and their order counts;
//   - arrays have the same elements in the same order;
//   - strings have the same bytes once escapes are resolved; bytes that are not UTF-8 stay, and half a surrogate pair stays the escape that it is;
//   - numbers are exactly the same number in decimal, whatever its size: 1, 1.0 and 10e-1 are one, 0 and -0 are one. Only exponents of more than 18 digits
//     are compared as they are written;
//   - an absent member, null, "", 0 and false are five different things, and 1 differs from "1".
func canonicalJSON(out, value []byte, selected, ignored *pathNode) ([]byte, error) {
	c := canonicalisers.Get().(*canonicaliser)
	c.in, c.pos, c.out, c.members = value, 0, out, c.members[:0]
	start := len(out)
	_, err := c.document(selected, ignored)
	out = c.out
	c.in, c.out = nil, nil
	if cap(c.scratch) > maxPooled {
		c.scratch = nil
	}
	canonicalisers.Put(c)
	if err != nil {
		return out[:start], err
	}
	return out, nil
}

// maxPooled is the largest buffer that is kept for reuse, so that one large payload does not stay in memory for good.
const maxPooled = 1 << 20

var canonicalisers = sync.Pool{New: func() any { return new(canonicaliser) }}

// A canonicaliser reads one JSON value (RFC 8259) from in and writes its canonical text to out as it goes; there is no tree. Only objects whose members do
// not come sorted are written a second time.
type canonicaliser struct {
	in      []byte
	pos     int
	out     []byte
	members []member // of the objects that are open, innermost last
	scratch []byte
}

// A member is a member of an object in out: its name with quotes from from to nameEnd, all of it to end.
type member struct{ from, nameEnd, end int }

func (c *canonicaliser) document(selected, ignored *pathNode) (kept bool, err error) {
	kept, err = c.value(1, selected, ignored)
	if err != nil {
		return false, err
	}
	c.space()
	if c.pos != len(c.in) {
		return false, errNotJSON
	}
	return kept, nil
}

// value reads one value and writes what is kept of it; it reports whether that is anything. selected nil keeps all; ignored nil ignores nothing.
func (c *canonicaliser) value(depth int, selected, ignored *pathNode) (kept bool, err error) {
	c.space()
	if c.pos == len(c.in) {
		return false, errNotJSON
	}
	if depth > maxDepth {
		return false, errTooDeep
	}
	if selected != nil && selected.end {
		selected = nil
	}
	start := len(c.out)
	switch c.in[c.pos] {
	case '{':
		kept, err = c.object(depth, selected, ignored)
	case '[':
		kept, err = c.array(depth, selected, ignored)
	default:
		kept, err = selected == nil, c.scalar()
	}
	if err == nil && !kept {
		c.out = c.out[:start]
	}
	return kept, err
}

func (c *canonicaliser) scalar() error {
	switch c.in[c.pos] {
	case '"':
		return c.string()
	case 't':
		return c.word("true")
	case 'f':
		return c.word("false")
	case 'n':
		return c.word("null")
	default:
		return c.number()
	}
}

// object is called at an opening brace. An object of which nothing is selected is not kept.
func (c *canonicaliser) object(depth int, selected, ignored *pathNode) (kept bool, err error) {
	first, base := len(c.out)+1, len(c.members)
	c.pos++
	c.out = append(c.out, '{')
	for more := !c.closed('}'); more; {
		if err := c.member(depth, base, selected, ignored); err != nil {
			return false, err
		}
		if more, err = c.another('}'); err != nil {
			return false, err
		}
	}
	c.sort(first, c.members[base:])
	kept = selected == nil || len(c.members) > base
	c.members = c.members[:base]
	c.out = append(c.out, '}')
	return kept, nil
}

// member reads one member of the object whose members begin at base, and keeps it when it is selected and not ignored.
func (c *canonicaliser) member(depth, base int, selected, ignored *pathNode) error {
	start := len(c.out)
	if len(c.members) > base {
		c.out = append(c.out, ',')
	}
	from := len(c.out)
	c.space()
	if c.pos == len(c.in) || c.in[c.pos] != '"' {
		return errNotJSON
	}
	if err := c.string(); err != nil {
		return err
	}
	nameEnd := len(c.out)
	name := c.out[from+1 : nameEnd-1]
	below, without := selected.named(name), ignored.named(name)
	c.space()
	if c.pos == len(c.in) || c.in[c.pos] != ':' {
		return errNotJSON
	}
	c.pos++
	c.out = append(c.out, ':')
	kept, err := c.child(depth, selected, below, without)
	if err != nil {
		return err
	}
	if !kept {
		c.out = c.out[:start]
		return nil
	}
	c.members = append(c.members, member{from: from, nameEnd: nameEnd, end: len(c.out)})
	return nil
}

// child reads a member's or an element's value. selected is the container's; below and without are what leads on from it.
func (c *canonicaliser) child(depth int, selected, below, without *pathNode) (kept bool, err error) {
	if without != nil && without.end || selected != nil && below == nil {
		_, err := c.value(depth+1, nil, nil)
		return false, err
	}
	return c.value(depth+1, below, without)
}

// sort brings the members of the object whose text begins at first into the order of their names; those of one name stay as they are.
func (c *canonicaliser) sort(first int, members []member) {
	byName := func(text []byte, shift int) func(a, b member) int {
		return func(a, b member) int {
			return bytes.Compare(text[a.from-shift:a.nameEnd-shift], text[b.from-shift:b.nameEnd-shift])
		}
	}
	if slices.IsSortedFunc(members, byName(c.out, 0)) {
		return
	}
	c.scratch = append(c.scratch[:0], c.out[first:]...)
	slices.SortStableFunc(members, byName(c.scratch, first))
	c.out = c.out[:first]
	for i, m := range members {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = append(c.out, c.scratch[m.from-first:m.end-first]...)
	}
}

// array is called at an opening bracket. Where all is kept its text is JSON; where something is selected each kept element carries its index, so that what
// stands at another place is another thing.
func (c *canonicaliser) array(depth int, selected, ignored *pathNode) (kept bool, err error) {
	c.pos++
	c.out = append(c.out, '[')
	count := 0
	index := 0
	for more := !c.closed(']'); more; index++ {
		start := len(c.out)
		if count > 0 {
			c.out = append(c.out, ',')
		}
		if selected != nil {
			c.out = appendDecimal(c.out, index)
			c.out = append(c.out, ':')
		}
		kept, err := c.child(depth, selected, selected.at(index), ignored.at(index))
		if err != nil {
			return false, err
		}
		if kept {
			count++
		} else {
			c.out = c.out[:start]
		}
		if more, err = c.another(']'); err != nil {
			return false, err
		}
	}
	c.out = append(c.out, ']')
	return selected == nil || count > 0, nil
}

// closed skips the closing bracket of an empty object or array, if that is what comes.
func (c *canonicaliser) closed(bracket byte) bool {
	c.space()
	if c.pos < len(c.in) && c.in[c.pos] == bracket {
		c.pos++
		return true
	}
	return false
}

// another reads what follows a member or an element: a comma, after which there is another, or the closing bracket.
func (c *canonicaliser) another(bracket byte) (more bool, err error) {
	c.space()
	if c.pos == len(c.in) || c.in[c.pos] != ',' && c.in[c.pos] != bracket {
		return false, errNotJSON
	}
	c.pos++
	return c.in[c.pos-1] == ',', nil
}

func (c *canonicaliser) space() {
	for c.pos < len(c.in) {
		switch c.in[c.pos] {
		case ' ', '\t', '\n', '\r':
			c.pos++
		default:
			return
		}
	}
}

func (c *canonicaliser) word(word string) error {
	if !bytes.HasPrefix(c.in[c.pos:], []byte(word)) {
		return errNotJSON
	}
	c.pos += len(word)
	c.out = append(c.out, word...)
	return nil
}

// string is called at an opening quote.
func (c *canonicaliser) string() error {
	c.out = append(c.out, '"')
	c.pos++
	for plain := c.pos; c.pos < len(c.in); {
		switch b := c.in[c.pos]; {
		case b == '"':
			c.out = append(append(c.out, c.in[plain:c.pos]...), '"')
			c.pos++
			return nil
		case b < ' ':
			return errNotJSON
		case b != '\\':
			c.pos++
		default:
			c.out = append(c.out, c.in[plain:c.pos]...)
			r, size := decodeEscape(c.in[c.pos:])
			if size == 0 {
				return errNotJSON
			}
			c.out = appendCanonicalRune(c.out, r)
			c.pos += size
			plain = c.pos
		}
	}
	return errNotJSON
}

// appendCanonicalRune appends a character of a string: escaped where JSON has to, and where the character is half a surrogate pair.
func appendCanonicalRune(out []byte, r rune) []byte {
	switch {
	case r == '"' || r == '\\':
		return append(out, '\\', byte(r))
	case r < ' ' || r >= surrogateFirst && r <= surrogateLast:
		const digits = "0123456789abcdef"
		return append(out, '\\', 'u', digits[r>>12], digits[r>>8&15], digits[r>>4&15], digits[r&15])
	default:
		return utf8.AppendRune(out, r)
	}
}
