package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A fieldError says what is wrong with one field of the configuration.
type fieldError struct {
	// path leads to the field: queues, orders, routes, [0], name.
	path    []string
	problem string
	// place is the file and line, or the variable of the environment, as far as known.
	place string
}

func (e *fieldError) Error() string {
	text := dotted(e.path) + ": " + e.problem
	if e.place != "" {
		text = e.place + ": " + text
	}
	return text
}

func fieldErrorf(path []string, format string, args ...any) error {
	return &fieldError{path: append([]string(nil), path...), problem: fmt.Sprintf(format, args...)}
}

// dotted writes a path as people do: queues.orders.routes[0].name.
func dotted(path []string) string {
	return strings.ReplaceAll(strings.Join(path, "."), ".[", "[")
}

// placed adds the file and the line to every field error that has no place yet.
func placed(c *Config, err error) error {
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		errs := make([]error, 0, 4)
		for _, part := range joined.Unwrap() {
			errs = append(errs, placed(c, part))
		}
		return errors.Join(errs...)
	}
	if field, ok := errors.AsType[*fieldError](err); ok && field.place == "" && c.file != "" {
		if line := c.lines.of(field.path); line > 0 {
			return &fieldError{path: field.path, problem: field.problem, place: c.file + ":" + strconv.Itoa(line)}
		}
	}
	return err
}

// yamlLines tells where in a YAML text a path is.
type yamlLines struct{ root *yaml.Node }

// readLines keeps the places of a text that is known to be YAML.
func readLines(text []byte) yamlLines {
	var document yaml.Node
	if yaml.Unmarshal(text, &document) != nil || len(document.Content) == 0 {
		return yamlLines{}
	}
	return yamlLines{root: document.Content[0]}
}

// of returns the line of the deepest part of the path that is in the text, from
// 1; 0 when not even its first part is there.
func (l yamlLines) of(path []string) (line int) {
	node := l.root
	for _, part := range path {
		if node != nil && node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		var next *yaml.Node
		switch {
		case node == nil:
		case node.Kind == yaml.MappingNode:
			for i := 0; i+1 < len(node.Content); i += 2 {
				if node.Content[i].Value == part {
					line, next = node.Content[i].Line, node.Content[i+1]
				}
			}
		case node.Kind == yaml.SequenceNode:
			if index, err := strconv.Atoi(strings.Trim(part, "[]")); err == nil && index < len(node.Content) {
				next = node.Content[index]
				line = next.Line
			}
		}
		if next == nil {
			return line
		}
		node = next
	}
	return line
}

var quotedValue = regexp.MustCompile("'[^']*'|`[^`]*`")

// withoutValues takes quoted values out of the YAML parser's errors: an unquoted
// password that begins with * is quoted there as an unknown anchor. What stands in
// double quotes are keys.
func withoutValues(err error) error {
	return errors.New(quotedValue.ReplaceAllString(err.Error(), "…"))
}
