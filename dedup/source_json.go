package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
	"github.com/twmb/franz-go/pkg/kgo"
)

// maxDepth is how deep JSON and XML may be nested. It bounds the stack: the parsers here and in the libraries call themselves for each level, and a value
// that is nothing but opening brackets would end the process, which no recover can prevent.
const maxDepth = 1000

var (
	errNotJSON = errors.New("the value is not valid JSON")
	errTooDeep = fmt.Errorf("the value is nested more than %d levels deep", maxDepth)
)

// JSON finds what a path leads to in a value that is JSON. The path is gjson's: order.id, lines.0.sku, meta|@fromstr|id, lines.#(kind=="main").id; a dot within a
// name is written \. and a leading `$.`, as JSONPath has it, is taken off. Brackets are not part of it: write lines.0 for lines[0].
//
// A string is found with its escapes resolved, a number with its digits exactly as they are written (9007199254740993 stays itself; 1 and 1.0 are two texts),
// true and false as these words. A path that leads nowhere, or to null, is not found; neither is anything in a null value (a tombstone).
// The record is undecodable when its value is not valid JSON (also when it is empty), is nested more than 1000 levels deep, or when the path leads to an object
// or an array, or to a string with half a surrogate pair, which has no bytes of its own. Of repeated members of one name the first counts.
func JSON(path string) Source {
	if path == "$" {
		return &jsonSource{path: "@this", whole: true}
	}
	return &jsonSource{path: strings.TrimPrefix(path, "$.")}
}

type jsonSource struct {
	path  string // as gjson takes it
	whole bool   // the path was $, the value itself
}

func (s *jsonSource) Find(r *kgo.Record) (string, bool, error) {
	if r.Value == nil {
		return "", false, nil
	}
	if err := checkJSON(r.Value); err != nil {
		return "", false, undecodable(s, r, err)
	}
	return s.findValid(r)
}

// findValid is Find for a record whose value is known to be valid JSON.
func (s *jsonSource) findValid(r *kgo.Record) (string, bool, error) {
	result := gjson.GetBytes(r.Value, s.path)
	switch result.Type {
	case gjson.Null:
		return "", false, nil
	case gjson.Number, gjson.True, gjson.False:
		return result.Raw, true, nil
	case gjson.String:
		if strings.IndexByte(result.Raw, '\\') < 0 {
			return result.Str, true, nil
		}
		value, err := unquoteJSON(result.Raw)
		if err != nil {
			return "", false, undecodable(s, r, err)
		}
		return value, true, nil
	default:
		kind := "an object"
		if result.IsArray() {
			kind = "an array"
		}
		return "", false, undecodable(s, r, fmt.Errorf("the path leads to %s; a string, a number, true or false is needed", kind))
	}
}

func (s *jsonSource) String() string {
	if s.whole {
		return kindJSON + ":$"
	}
	return kindJSON + ":" + ruleArgument("$."+s.path)
}

func (*jsonSource) constant() bool { return false }

// check refuses what gjson would take without a word and answer with nothing, or with something that is not in the record.
func (s *jsonSource) check() error {
	switch {
	case s.path == "":
		return errors.New("json: the path is empty; write $ for the whole value")
	case strings.HasPrefix(s.path, "!"):
		return errors.New("json: the path begins with !, which is a constant in gjson; write const: for a constant, \\! for a name")
	}
	depth, quoted, last := 0, false, byte('.')
	for i := 0; i < len(s.path); i++ {
		c := s.path[i]
		switch {
		case c == '\\':
			i++
		case depth > 0 && c == '"':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth > 0:
		case c == '[' || c == '{':
			return fmt.Errorf("json: %q at byte %d: brackets are not part of a path; write lines.0 for lines[0], and \\%c for a name that holds one", c, i, c)
		case c == '.' && (last == '.' || i == len(s.path)-1):
			return fmt.Errorf("json: a name is missing at byte %d of the path", i)
		}
		last = c
	}
	if depth != 0 || quoted {
		return errors.New("json: a parenthesis or a quote in the path is not closed")
	}
	return nil
}

// checkJSON returns errNotJSON or errTooDeep for a value that gjson must not be asked about: it trusts what it reads, and calls itself for each level.
func checkJSON(value []byte) error {
	if tooDeep(value) {
		return errTooDeep
	}
	if !gjson.ValidBytes(value) {
		return errNotJSON
	}
	return nil
}

// tooDeep reports whether a value nests brackets more than maxDepth deep, without calling itself.
func tooDeep(value []byte) bool {
	// Counting is a few nanoseconds, and settles it for nearly every value.
	if bytes.Count(value, []byte{'{'})+bytes.Count(value, []byte{'['}) <= maxDepth {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// unquoteJSON resolves the escapes of a valid JSON string with its quotes. Bytes that are not UTF-8 are kept. Half a surrogate pair is an error: decoders
// replace it by U+FFFD, which would make one id of many.
func unquoteJSON(raw string) (string, error) {
	out := make([]byte, 0, len(raw))
	for i := 1; i < len(raw)-1; {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		r, size := decodeEscape(raw[i:])
		if size == 0 {
			return "", errors.New("the string has an escape that JSON does not know")
		}
		if r >= surrogateFirst && r <= surrogateLast {
			return "", errors.New("the string has half a surrogate pair, which stands for no character")
		}
		out = utf8.AppendRune(out, r)
		i += size
	}
	return string(out), nil
}
