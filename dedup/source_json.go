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
		return &jsonSource{path: "$", steps: []string{"@this"}}
	}
	path = strings.TrimPrefix(path, "$.")
	return &jsonSource{path: "$." + path, steps: strings.Split(path, fromString)}
}

// fromString is where a path goes on within a string that is JSON itself. It is not left to gjson, which does not ask how deep that JSON is nested.
const fromString = "|@fromstr|"

type jsonSource struct {
	path  string   // as it is shown
	steps []string // as gjson takes them; what all but the last lead to is a string of JSON
}

func (s *jsonSource) Find(r *kgo.Record) (string, bool, error) {
	return s.findChecked(r, &jsonCheck{})
}

// findChecked is Find for a record whose value may have been checked before.
func (s *jsonSource) findChecked(r *kgo.Record, check *jsonCheck) (string, bool, error) {
	if r.Value == nil {
		return "", false, nil
	}
	if err := check.of(r.Value); err != nil {
		return "", false, undecodable(s, r, err)
	}
	return s.findValid(r)
}

// findValid is Find for a record whose value is known to be valid JSON.
func (s *jsonSource) findValid(r *kgo.Record) (string, bool, error) {
	result := gjson.GetBytes(r.Value, s.steps[0])
	for _, step := range s.steps[1:] {
		if result.Type == gjson.Null {
			return "", false, nil
		}
		if result.Type != gjson.String {
			return "", false, undecodable(s, r, errors.New("@fromstr needs a string, and the path before it leads to something else"))
		}
		if err := checkJSON([]byte(result.Str)); err != nil {
			return "", false, undecodable(s, r, fmt.Errorf("@fromstr: %w", err))
		}
		result = gjson.Get(result.Str, step)
	}
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

func (s *jsonSource) String() string { return kindJSON + ":" + ruleArgument(s.path) }

func (*jsonSource) constant() bool { return false }

func (s *jsonSource) check() error {
	for _, step := range s.steps {
		if err := checkJSONPath(step); err != nil {
			return fmt.Errorf("json: path %s: %w", s.path, err)
		}
	}
	return nil
}

// checkJSONPath refuses what gjson would take without a word and answer with nothing, or with something that is not in the record.
func checkJSONPath(path string) error { //nolint:cyclop // a case for each thing that gjson takes without a word
	switch {
	case path == "":
		return errors.New("it is empty, or a part of it is; write $ for the whole value")
	case strings.HasPrefix(path, "!"):
		return errors.New("it begins with !, which is a constant in gjson; write const: for a constant, \\! for a name")
	case strings.Contains(path, "@fromstr"):
		return errors.New("@fromstr is possible between two bars only, as in body|@fromstr|id")
	case strings.HasSuffix(path, "#") && !strings.HasSuffix(path, `\#`):
		return errors.New("it ends with #, which counts elements, or takes them all; lines.0 or lines.#(a==1) takes one")
	}
	depth, quoted, last := 0, false, byte('.')
	for i := 0; i < len(path); i++ {
		c := path[i]
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
			return fmt.Errorf("%q at byte %d: brackets are not part of a path; write lines.0 for lines[0], and \\%c for a name that holds one", c, i, c)
		case c == '.' && (last == '.' || i == len(path)-1):
			return fmt.Errorf("a name is missing at byte %d", i)
		}
		last = c
	}
	if depth != 0 || quoted {
		return errors.New("a parenthesis or a quote is not closed")
	}
	return nil
}

// A jsonCheck is what is known of one record's value, so that rules with several JSON sources check it once: that is most of their cost.
type jsonCheck struct {
	done bool
	err  error
}

// of returns checkJSON of the value, which is the same in every call.
func (c *jsonCheck) of(value []byte) error {
	if !c.done {
		c.done, c.err = true, checkJSON(value)
	}
	return c.err
}

// findIn is source.Find with what is known of the record's value. The sources that profit are named by their types: through an interface the check would
// be one allocation for each record.
func findIn(source Source, r *kgo.Record, check *jsonCheck) (string, bool, error) {
	switch s := source.(type) {
	case *jsonSource:
		return s.findChecked(r, check)
	case envelopeSource:
		return s.findChecked(r, check)
	default:
		return source.Find(r)
	}
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
