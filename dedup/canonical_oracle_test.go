package dedup

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// oracle describes a valid JSON value so that two descriptions are equal when, and only when, the values are equal in the sense that canonicalJSON
// documents. It is slow and plain: gjson for the structure, UTF-16 for strings, big.Int for numbers.
func oracle(value string) string { return oracleOf(gjson.Parse(value)) }

func oracleOf(value gjson.Result) string {
	switch value.Type {
	case gjson.String:
		return oracleString(value.Raw)
	case gjson.Number:
		return oracleNumber(strings.TrimSpace(value.Raw))
	case gjson.JSON:
		return oracleContainer(value)
	default:
		return strings.TrimSpace(value.Raw)
	}
}

func oracleContainer(value gjson.Result) string {
	if value.IsArray() {
		var elements []string
		value.ForEach(func(_, element gjson.Result) bool {
			elements = append(elements, oracleOf(element))
			return true
		})
		return "array" + counted(elements)
	}
	members := map[string][]string{}
	value.ForEach(func(key, member gjson.Result) bool {
		name := oracleString(key.Raw)
		members[name] = append(members[name], oracleOf(member))
		return true
	})
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		parts = append(parts, name, counted(members[name]))
	}
	return "object" + counted(parts)
}

// counted joins parts so that their borders stay known.
func counted(parts []string) string {
	var joined strings.Builder
	for _, part := range parts {
		fmt.Fprintf(&joined, "[%d %s]", len(part), part)
	}
	return joined.String()
}

// oracleString lists what a string is made of: characters, bytes that are not UTF-8, and halves of surrogate pairs.
func oracleString(raw string) string {
	raw = raw[1 : len(raw)-1]
	var parts []string
	var units []uint16 // escapes that follow one another
	flush := func() {
		for i := 0; i < len(units); i++ {
			if i+1 < len(units) && utf16.DecodeRune(rune(units[i]), rune(units[i+1])) != utf8.RuneError {
				parts = append(parts, fmt.Sprint(utf16.DecodeRune(rune(units[i]), rune(units[i+1]))))
				i++
				continue
			}
			if utf16.IsSurrogate(rune(units[i])) {
				parts = append(parts, fmt.Sprintf("half %x", units[i]))
				continue
			}
			parts = append(parts, fmt.Sprint(rune(units[i])))
		}
		units = nil
	}
	for len(raw) > 0 {
		if raw[0] == '\\' && raw[1] == 'u' {
			unit, err := strconv.ParseUint(raw[2:6], 16, 16)
			if err != nil {
				return "bad escape " + raw[:6]
			}
			units = append(units, uint16(unit))
			raw = raw[6:]
			continue
		}
		flush()
		r, size := utf8.DecodeRuneInString(raw)
		switch {
		case raw[0] == '\\':
			short := map[byte]rune{'b': 8, 'f': 12, 'n': 10, 'r': 13, 't': 9}
			r, size = rune(raw[1]), 2
			if control, ok := short[raw[1]]; ok {
				r = control
			}
			parts = append(parts, fmt.Sprint(r))
		case r == utf8.RuneError && size == 1:
			parts = append(parts, fmt.Sprintf("byte %x", raw[0]))
		default:
			parts = append(parts, fmt.Sprint(r))
		}
		raw = raw[size:]
	}
	flush()
	return "string" + counted(parts)
}

// oracleNumber writes a number as an integer times a power of ten, by dividing for as long as ten divides it.
func oracleNumber(raw string) string {
	mantissa, exponentText, _ := strings.Cut(strings.ToLower(raw), "e")
	exponent := new(big.Int)
	if exponentText != "" {
		exponent.SetString(strings.TrimPrefix(exponentText, "+"), 10)
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	number, _ := new(big.Int).SetString(whole+fraction, 10)
	if number.Sign() == 0 {
		return "0"
	}
	if len(strings.TrimLeft(strings.TrimLeft(exponentText, "+-"), "0")) > 18 {
		return "as written " + raw
	}
	exponent.Sub(exponent, big.NewInt(int64(len(fraction))))
	ten, rest := big.NewInt(10), new(big.Int)
	for {
		quotient, _ := new(big.Int).QuoRem(number, ten, rest)
		if rest.Sign() != 0 {
			return number.String() + " times ten to the power of " + exponent.String()
		}
		number = quotient
		exponent.Add(exponent, big.NewInt(1))
	}
}

// oracleKnows reports whether the oracle can be asked about a value: one of its numbers has an exponent so long that it is compared as it is written, where a
// spelling of one number can be the canonical text of an equal one.
func oracleKnows(value string) bool {
	return !slices.ContainsFunc(strings.FieldsFunc(value, func(r rune) bool { return r < '0' || r > '9' }), func(digits string) bool { return len(digits) > 18 })
}
