// Package jsonbcheck tells whether Postgres would take bytes as jsonb, without
// asking it.
//
// A batch sends many values in one jsonb[] parameter, and one value that the
// server refuses fails them all without saying which. So each is checked before,
// and the one at fault is failed by name. The check is a pass of its own over the
// bytes because no parser knows the server's rules: encoding/json and gjson take
// a NUL escape, half a surrogate pair and 1e400000, which jsonb refuses.
//
// A value that Check passes is taken by every Postgres from 12 to 18 whose
// database encoding is UTF8. The other way round Check is stricter in three
// documented bounds only: MaxBytes, MaxDepth and, for a number that begins with
// zeros, the largest exponent, as if they were other digits.
package jsonbcheck

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

const (
	// MaxBytes is the longest text that passes. The server's own bound is 2^28-1
	// bytes of the *stored* form, which is at most six times as long as the text
	// (a one-digit element of an array: 2 bytes of text, 12 stored), and 1 GB for
	// what it needs while it reads the text.
	MaxBytes = 32 << 20
	// MaxDepth is how deep arrays and objects may be nested. The server's bound is
	// its stack: above 9,000 levels at the default max_stack_depth of 2 MB, and
	// between 600 and 800 at the least that can be set, 100 kB.
	MaxDepth = 512
)

// Bounds of numeric, in which jsonb keeps numbers (numeric.c: NUMERIC_DSCALE_MAX,
// NUMERIC_WEIGHT_MAX in decimal digits).
const (
	maxScale    = 16383  // digits after the point
	maxExponent = 131071 // of the first digit: 1e131071 is the largest power of ten
)

// A RefusedError says where and why a value is not taken.
type RefusedError struct {
	// Offset is the byte at which the value goes wrong, from 0; the value's length
	// when it ends too early.
	Offset int
	// Reason is one of a fixed set of texts; it quotes nothing of the value.
	Reason string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("not storable as jsonb: %s at byte %d", e.Reason, e.Offset)
}

// Check returns nil when Postgres takes value as jsonb, else a *RefusedError. A
// value without any bytes, nil too, is refused: it is no JSON text. Check keeps
// nothing, and allocates only for its error.
func Check(value []byte) error {
	if len(value) > MaxBytes {
		return &RefusedError{Offset: MaxBytes, Reason: "longer than 32 MiB"}
	}
	if !utf8.Valid(value) {
		return &RefusedError{Offset: firstInvalid(value), Reason: "not UTF-8"}
	}
	w := walker{text: value}
	if reason := w.document(); reason != "" {
		return &RefusedError{Offset: w.pos, Reason: reason}
	}
	return nil
}

func firstInvalid(value []byte) int {
	for at := 0; at < len(value); {
		r, size := utf8.DecodeRune(value[at:])
		if r == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
	return len(value)
}

// A walker goes over a text once. Nesting is a bit a level and not recursion, so
// that no input can exhaust the stack. Its methods return the reason for a
// refusal, and leave pos at the byte that is at fault; "" is success.
type walker struct {
	text    []byte
	pos     int
	depth   int
	objects [MaxDepth / 64]uint64 // bit set: the level is an object
}

const (
	reasonEnd    = "the text ends too early"
	reasonByte   = "an unexpected byte"
	reasonAfter  = "something after the end of the value"
	reasonDepth  = "nested more than 512 deep"
	reasonNUL    = "the escape of NUL, which Postgres cannot store"
	reasonHalf   = "half a surrogate pair"
	reasonEscape = "an escape that JSON does not have"
	reasonRaw    = "a control character in a string"
	reasonNumber = "a malformed number"
	reasonRange  = "a number outside the range of numeric"
)

func (w *walker) document() string {
	for {
		opened, reason := w.value()
		if reason != "" {
			return reason
		}
		if opened {
			continue
		}
		done, reason := w.next()
		if reason != "" || done {
			return reason
		}
	}
}

// value reads a scalar, an empty array or object, or the opening of one that is
// not empty (opened: a value comes next).
func (w *walker) value() (opened bool, reason string) {
	c, ok := w.skipSpace()
	if !ok {
		return false, reasonEnd
	}
	switch c {
	case '"':
		return false, w.str()
	case '{', '[':
		return w.open(c)
	case 't':
		return false, w.word("true")
	case 'f':
		return false, w.word("false")
	case 'n':
		return false, w.word("null")
	default:
		return false, w.number()
	}
}

func (w *walker) open(bracket byte) (opened bool, reason string) {
	if w.depth == MaxDepth {
		return false, reasonDepth
	}
	w.pos++
	c, ok := w.skipSpace()
	if !ok {
		return false, reasonEnd
	}
	if c == bracket+2 { // } is two after {, and ] two after [
		w.pos++
		return false, ""
	}
	word, bit := &w.objects[w.depth/64], uint64(1)<<(w.depth%64)
	w.depth++
	if bracket == '[' {
		*word &^= bit
		return true, ""
	}
	*word |= bit
	return true, w.key()
}

// next reads what may stand after a value: ends, and a comma with the key that
// follows it. done: the document is complete.
func (w *walker) next() (done bool, reason string) {
	for {
		c, ok := w.skipSpace()
		if w.depth == 0 {
			if ok {
				return false, reasonAfter
			}
			return true, ""
		}
		if !ok {
			return false, reasonEnd
		}
		level := w.depth - 1
		inObject := w.objects[level/64]>>(level%64)&1 == 1
		switch {
		case c == ',':
			w.pos++
			if inObject {
				return false, w.key()
			}
			return false, ""
		case inObject && c == '}', !inObject && c == ']':
			w.pos++
			w.depth--
		default:
			return false, reasonByte
		}
	}
}

func (w *walker) key() string {
	c, ok := w.skipSpace()
	if !ok {
		return reasonEnd
	}
	if c != '"' {
		return reasonByte
	}
	if reason := w.str(); reason != "" {
		return reason
	}
	c, ok = w.skipSpace()
	if !ok {
		return reasonEnd
	}
	if c != ':' {
		return reasonByte
	}
	w.pos++
	return ""
}

// skipSpace moves to the next byte that is not white space and returns it.
func (w *walker) skipSpace() (byte, bool) {
	for w.pos < len(w.text) {
		switch c := w.text[w.pos]; c {
		case ' ', '\n', '\t', '\r':
			w.pos++
		default:
			return c, true
		}
	}
	return 0, false
}

func (w *walker) word(word string) string {
	for i := range len(word) {
		if w.pos == len(w.text) {
			return reasonEnd
		}
		if w.text[w.pos] != word[i] {
			return reasonByte
		}
		w.pos++
	}
	return ""
}

// str reads a string from its opening quote.
func (w *walker) str() string {
	w.pos++
	for {
		w.skipPlain()
		if w.pos == len(w.text) {
			return reasonEnd
		}
		switch w.text[w.pos] {
		case '"':
			w.pos++
			return ""
		case '\\':
			if reason := w.escape(); reason != "" {
				return reason
			}
		default:
			return reasonRaw
		}
	}
}

// skipPlain moves to the next quote, backslash or control character, eight bytes
// at a time: strings are most of what most values are made of.
func (w *walker) skipPlain() {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	text, pos := w.text, w.pos
	for ; pos+8 <= len(text); pos += 8 {
		word := binary.LittleEndian.Uint64(text[pos:])
		quote := word ^ ones*'"'
		slash := word ^ ones*'\\'
		// A byte's high bit is set where it is zero (quote, slash) or below space. A
		// borrow can set a false one only above a true one, and the lowest is taken.
		found := ((quote-ones)&^quote | (slash-ones)&^slash | (word-ones*' ')&^word) & highs
		if found != 0 {
			w.pos = pos + bits.TrailingZeros64(found)/8
			return
		}
	}
	for ; pos < len(text); pos++ {
		if c := text[pos]; c == '"' || c == '\\' || c < ' ' {
			break
		}
	}
	w.pos = pos
}

// escape reads an escape from its backslash. At a refusal pos is the backslash.
func (w *walker) escape() string {
	if w.pos+1 == len(w.text) {
		w.pos++
		return reasonEnd
	}
	switch w.text[w.pos+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		w.pos += 2
		return ""
	case 'u':
		return w.unicode()
	default:
		return reasonEscape
	}
}

func (w *walker) unicode() string {
	unit, ok := w.unit(w.pos)
	switch {
	case !ok:
		return reasonEscape
	case unit == 0:
		return reasonNUL
	case unit < 0xd800 || unit > 0xdfff:
		w.pos += 6
		return ""
	case unit >= 0xdc00:
		return reasonHalf
	}
	low, ok := w.unit(w.pos + 6)
	if !ok || low < 0xdc00 || low > 0xdfff {
		return reasonHalf
	}
	w.pos += 12
	return ""
}

// unit reads \uXXXX at a place.
func (w *walker) unit(at int) (unit uint32, ok bool) {
	if at+6 > len(w.text) || w.text[at] != '\\' || w.text[at+1] != 'u' {
		return 0, false
	}
	for _, c := range w.text[at+2 : at+6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		unit = unit<<4 | uint32(c)
	}
	return unit, true
}

// number reads a number, or whatever stands where a value should.
func (w *walker) number() string {
	start := w.pos
	if w.text[w.pos] == '-' {
		w.pos++
	}
	whole := w.digits()
	if whole == 0 {
		if w.pos == len(w.text) {
			return reasonEnd
		}
		if w.pos == start {
			return reasonByte
		}
		return reasonNumber
	}
	if whole > 1 && w.text[w.pos-whole] == '0' {
		w.pos -= whole
		return reasonNumber
	}
	fraction := 0
	if w.at('.') {
		w.pos++
		if fraction = w.digits(); fraction == 0 {
			return w.endOr(reasonNumber)
		}
	}
	exponent := 0
	if w.at('e') || w.at('E') {
		w.pos++
		var reason string
		if exponent, reason = w.exponent(); reason != "" {
			return reason
		}
	}
	if fraction-exponent > maxScale || whole-1+exponent > maxExponent {
		w.pos = start
		return reasonRange
	}
	return ""
}

// exponent reads a number's exponent, bounded far outside of what is in range.
func (w *walker) exponent() (exponent int, reason string) {
	const bound = 1 << 29
	negative := w.at('-')
	if negative || w.at('+') {
		w.pos++
	}
	first := w.pos
	for w.pos < len(w.text) && '0' <= w.text[w.pos] && w.text[w.pos] <= '9' {
		exponent = min(exponent*10+int(w.text[w.pos]-'0'), bound)
		w.pos++
	}
	if w.pos == first {
		return 0, w.endOr(reasonNumber)
	}
	if negative {
		exponent = -exponent
	}
	return exponent, ""
}

func (w *walker) digits() int {
	first := w.pos
	for w.pos < len(w.text) && '0' <= w.text[w.pos] && w.text[w.pos] <= '9' {
		w.pos++
	}
	return w.pos - first
}

func (w *walker) at(c byte) bool { return w.pos < len(w.text) && w.text[w.pos] == c }

func (w *walker) endOr(reason string) string {
	if w.pos == len(w.text) {
		return reasonEnd
	}
	return reason
}
