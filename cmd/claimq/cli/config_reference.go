package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// referenceText finds ${ENV:NAME} and ${FILE:path}, and with a second dollar in
// front the escaped form, which stands for itself with one.
var referenceText = regexp.MustCompile(`\$?\$\{([A-Z]+):([^}]*)\}`)

// references fills in what the texts of a configuration file refer to, and makes
// paths of files that are relative begin at the file's directory. What is filled
// in is not looked at again.
type references struct {
	env      *Env
	dir      string // what relative paths begin at: the configuration file's directory
	problems []error
}

func (r *references) expand(path []string, value any) any {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			value[key] = r.expand(append(slices.Clone(path), key), value[key])
		}
	case []any:
		for i := range value {
			value[i] = r.expand(append(slices.Clone(path), "["+strconv.Itoa(i)+"]"), value[i])
		}
	case string:
		value = referenceText.ReplaceAllStringFunc(value, func(match string) string {
			if strings.HasPrefix(match, "$$") {
				return match[1:]
			}
			groups := referenceText.FindStringSubmatch(match)
			text, problem := r.find(groups[1], groups[2])
			if problem != "" {
				r.problems = append(r.problems, fieldErrorf(path, "%s: %s", match, problem))
			}
			return text
		})
		if strings.HasSuffix(path[len(path)-1], "_file") && value != "" {
			value = inDirectory(r.dir, value)
		}
		return value
	}
	return value
}

func (r *references) find(kind, name string) (text, problem string) {
	switch kind {
	case "ENV":
		text, ok := r.env.lookup(name)
		if !ok {
			return "", "the environment has no such variable"
		}
		return text, ""
	case "FILE":
		text, err := readSecretFile(inDirectory(r.dir, name))
		if err != nil {
			return "", err.Error()
		}
		return string(text), ""
	default:
		return "", "a reference is ${ENV:NAME} or ${FILE:path}; write $${…} for the text itself"
	}
}

// readSecretFile reads a file that holds one secret; the line break that editors
// put at its end is not part of it.
func readSecretFile(path string) (Secret, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err // names the path
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return Secret(secret), nil
}

// inDirectory returns path, which begins at dir unless it is absolute.
func inDirectory(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
