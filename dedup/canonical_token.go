package dedup

import (
	"bytes"
	"strconv"
	"unicode/utf16"
)

// The halves of surrogate pairs in UTF-16.
const (
	surrogateFirst = 0xD800
	surrogateLast  = 0xDFFF
)

// decodeEscape reads the JSON escape at the beginning of text, and two that make up a surrogate pair as one. Half a pair is returned as it is. size is the
// number of bytes read, 0 when that is no escape of JSON.
func decodeEscape[T string | []byte](text T) (r rune, size int) {
	if len(text) < 2 {
		return 0, 0
	}
	switch text[1] {
	case '"', '\\', '/':
		return rune(text[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
	default:
		return 0, 0
	}
	r, ok := decodeHex(text)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(r) && len(text) >= 12 && text[6] == '\\' && text[7] == 'u' {
		if low, ok := decodeHex(text[6:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != '\uFFFD' {
				return pair, 12
			}
		}
	}
	return r, 6
}

// decodeHex reads the four hex digits of an escape that begins with \u.
func decodeHex[T string | []byte](escape T) (r rune, ok bool) {
	if len(escape) < 6 {
		return 0, false
	}
	for i := 2; i < 6; i++ {
		digit := rune(escape[i])
		switch {
		case digit >= '0' && digit <= '9':
			digit -= '0'
		case digit >= 'a' && digit <= 'f':
			digit -= 'a' - 10
		case digit >= 'A' && digit <= 'F':
			digit -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | digit
	}
	return r, true
}

// number reads a number and writes it as digits without zeros at either end, and the power of ten where that is not zero: 12.50e3 is 125e2, 0.0 is 0.
// No arithmetic is done on the digits, so nothing is rounded and no exponent makes the text longer.
func (c *canonicaliser) number() error {
	start := c.pos
	negative := c.skip('-')
	whole := c.digits()
	if len(whole) == 0 || whole[0] == '0' && len(whole) > 1 {
		return errNotJSON
	}
	var fraction []byte
	if c.skip('.') {
		if fraction = c.digits(); len(fraction) == 0 {
			return errNotJSON
		}
	}
	exponent, known, err := c.exponent()
	if err != nil {
		return err
	}
	c.appendNumber(negative, whole, fraction, exponent, known, c.in[start:c.pos])
	return nil
}

func (c *canonicaliser) appendNumber(negative bool, whole, fraction []byte, exponent int64, known bool, written []byte) {
	start := len(c.out)
	if negative {
		c.out = append(c.out, '-')
	}
	first := len(c.out)
	if whole[0] != '0' {
		c.out = append(c.out, whole...)
	} else {
		fraction, exponent = trimLeadingZeros(fraction, exponent)
	}
	c.out = append(c.out, fraction...)
	exponent -= int64(len(fraction))
	for len(c.out) > first && c.out[len(c.out)-1] == '0' {
		c.out = c.out[:len(c.out)-1]
		exponent++
	}
	switch {
	case len(c.out) == first: // all zeros, whatever the sign and the exponent
		c.out = append(c.out[:start], '0')
	case !known:
		// What is written here has an exponent of 19 digits or more. Where it happens to look like the text of a number above, it is that number.
		c.out = append(c.out[:start], written...)
	case exponent != 0:
		c.out = append(c.out, 'e')
		c.out = strconv.AppendInt(c.out, exponent, 10)
	}
}

// trimLeadingZeros takes the zeros off that come before the first digit of 0.00…: they are places, which the length of the fraction no longer counts.
func trimLeadingZeros(fraction []byte, exponent int64) ([]byte, int64) {
	trimmed := bytes.TrimLeft(fraction, "0")
	return trimmed, exponent - int64(len(fraction)-len(trimmed))
}

// exponent reads the power of ten, when there is one. known is false when it has more than 18 digits.
func (c *canonicaliser) exponent() (exponent int64, known bool, err error) {
	if !c.skip('e') && !c.skip('E') {
		return 0, true, nil
	}
	negative := c.skip('-')
	if !negative {
		c.skip('+')
	}
	digits := c.digits()
	if len(digits) == 0 {
		return 0, false, errNotJSON
	}
	digits = bytes.TrimLeft(digits, "0")
	if len(digits) > 18 {
		return 0, false, nil
	}
	for _, digit := range digits {
		exponent = exponent*10 + int64(digit-'0')
	}
	if negative {
		exponent = -exponent
	}
	return exponent, true, nil
}

func (c *canonicaliser) digits() []byte {
	start := c.pos
	for c.pos < len(c.in) && c.in[c.pos] >= '0' && c.in[c.pos] <= '9' {
		c.pos++
	}
	return c.in[start:c.pos]
}

func (c *canonicaliser) skip(b byte) bool {
	if c.pos < len(c.in) && c.in[c.pos] == b {
		c.pos++
		return true
	}
	return false
}

func appendDecimal(out []byte, n int) []byte { return strconv.AppendInt(out, int64(n), 10) }
