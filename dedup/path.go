package dedup

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	maxPaths      = 64
	maxPathLength = 1000 // bytes
	maxPathNodes  = 10_000
	anyName       = "*"
)

// A pathNode is a set of fingerprint paths seen from one place in a value: what of it they cover, by the name or the index that comes next. A nil node is
// the empty set. Nodes do not change once they are made.
type pathNode struct {
	end   bool // a path ends here: this place and all below it is covered
	names map[string]*pathNode
	any   *pathNode // for names and indexes that are not in names
}

// named returns the node for a member; name is in canonical text, without quotes.
func (n *pathNode) named(name []byte) *pathNode {
	if n == nil {
		return nil
	}
	if below, ok := n.names[string(name)]; ok {
		return below
	}
	return n.any
}

// at returns the node for an element.
func (n *pathNode) at(index int) *pathNode {
	if n == nil {
		return nil
	}
	if len(n.names) > 0 {
		var buffer [20]byte
		if below, ok := n.names[string(strconv.AppendInt(buffer[:0], int64(index), 10))]; ok {
			return below
		}
	}
	return n.any
}

// A pathStep is one name of a path, in canonical text; any is the step *.
type pathStep struct {
	name string
	any  bool
}

// newPathNode makes the node for a set of paths. A path through * goes on below every name, so it is part of each of their sets too; paths that mix names and *
// in many ways can make as many sets as there are subsets of them, and are refused at maxPathNodes.
func newPathNode(paths [][]pathStep, nodes *int) (*pathNode, error) {
	if *nodes++; *nodes > maxPathNodes {
		return nil, errors.New("the paths combine * with names in too many ways; name a place further up, or fewer of them")
	}
	var throughAny [][]pathStep
	byName := map[string][][]pathStep{}
	for _, path := range paths {
		switch {
		case len(path) == 0:
			return &pathNode{end: true}, nil
		case path[0].any:
			throughAny = append(throughAny, path[1:])
		default:
			byName[path[0].name] = append(byName[path[0].name], path[1:])
		}
	}
	node := &pathNode{names: make(map[string]*pathNode, len(byName))}
	var err error
	if len(throughAny) > 0 {
		if node.any, err = newPathNode(throughAny, nodes); err != nil {
			return nil, err
		}
	}
	for name, rest := range byName {
		if node.names[name], err = newPathNode(append(rest, throughAny...), nodes); err != nil {
			return nil, err
		}
	}
	return node, nil
}

// parsePaths reads a list of paths and returns their canonical texts, sorted and each once, with the node for them.
func parsePaths(paths []string) (texts []string, node *pathNode, err error) {
	if len(paths) > maxPaths {
		return nil, nil, fmt.Errorf("%d paths, at most %d are possible", len(paths), maxPaths)
	}
	steps := make([][]pathStep, 0, len(paths))
	for _, path := range paths {
		parsed, err := parsePath(path)
		if err != nil {
			return nil, nil, fmt.Errorf("path %q: %w", path, err)
		}
		steps = append(steps, parsed)
		texts = append(texts, pathText(parsed))
	}
	slices.Sort(texts)
	nodes := 0
	if node, err = newPathNode(steps, &nodes); err != nil {
		return nil, nil, err
	}
	return slices.Compact(texts), node, nil
}

// parsePath reads a path: names separated by dots, an index for an element, * for every member or element. A backslash takes what follows as it is.
func parsePath(path string) ([]pathStep, error) {
	if len(path) > maxPathLength {
		return nil, fmt.Errorf("longer than %d bytes", maxPathLength)
	}
	path = strings.TrimPrefix(path, "$.")
	if path == "" {
		return nil, errors.New("it is empty")
	}
	var steps []pathStep
	var name []byte
	escaped := false // the name has a backslash, so it is a name even when it is *
	for i := 0; i <= len(path); i++ {
		if i == len(path) || path[i] == '.' {
			if len(name) == 0 {
				return nil, fmt.Errorf("a name is missing at byte %d", i)
			}
			steps = append(steps, newPathStep(name, escaped))
			name, escaped = nil, false
			continue
		}
		switch c := path[i]; {
		case c == '\\':
			if i++; i == len(path) {
				return nil, errors.New("it ends with a backslash")
			}
			name, escaped = append(name, path[i]), true
		case c == '[' || c == '?' || c == '#':
			return nil, fmt.Errorf("%q has no meaning in a fingerprint path; write lines.0 for lines[0], lines.* for every line, and \\%c in a name", c, c)
		case c == '*' && (len(name) > 0 || i+1 < len(path) && path[i+1] != '.'):
			return nil, errors.New("* stands for a whole name; write \\* in a name")
		default:
			name = append(name, c)
		}
	}
	return steps, nil
}

func newPathStep(name []byte, escaped bool) pathStep {
	if string(name) == anyName && !escaped {
		return pathStep{any: true}
	}
	canonical := make([]byte, 0, len(name))
	for _, b := range name { // bytes: what is not UTF-8 stays as it is in canonical text too
		if b < 0x80 {
			canonical = appendCanonicalRune(canonical, rune(b))
		} else {
			canonical = append(canonical, b)
		}
	}
	return pathStep{name: string(canonical)}
}

// pathText writes a path as parsePath reads it.
func pathText(steps []pathStep) string {
	var text strings.Builder
	for i, step := range steps {
		if i > 0 {
			text.WriteByte('.')
		}
		if step.any {
			text.WriteString(anyName)
			continue
		}
		appendPathName(&text, step.name)
	}
	// A first name of $ would be taken for the prefix of JSONPath.
	if strings.HasPrefix(text.String(), "$.") {
		return "\\" + text.String()
	}
	return text.String()
}

// appendPathName writes a name, given in canonical text, with the escapes that a path needs.
func appendPathName(text *strings.Builder, canonical string) {
	for i := 0; i < len(canonical); {
		size := 1
		r := rune(canonical[i])
		if r == '\\' {
			r, size = decodeEscape(canonical[i:])
		}
		i += size
		if r >= surrogateFirst && r <= surrogateLast {
			fmt.Fprintf(text, "\\u%04x", r)
			continue
		}
		if strings.ContainsRune(`\.*?#[`, r) {
			text.WriteByte('\\')
		}
		text.WriteByte(byte(r)) //nolint:gosec // ASCII: see above
	}
}
