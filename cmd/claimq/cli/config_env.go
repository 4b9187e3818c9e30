package cli

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/claimq/claimq/internal/nearest"
)

// envVariables finds the fields that variables of the environment stand for:
// CLAIMQ_DATABASE__DSN is database.dsn, two underscores between the parts. In a
// queue's name every character that is no letter or digit is written as an
// underscore, and letters in any case: CLAIMQ_QUEUES__ORDERS_EU__CONCURRENCY is
// queues.orders.eu.concurrency for a queue orders.eu of the file.
//
// Variables without two underscores are not looked at but for the short ones:
// Kubernetes makes CLAIMQ_PORT and its like for a service of the name claimq.
type envVariables struct {
	queues   []string
	problems []error
}

// transform is what koanf's provider calls with each variable: it returns the
// path, or "" for a variable that is not claimq's or that is wrong.
func (v *envVariables) transform(name, value string) (path string, text any) {
	parts := strings.Split(strings.TrimPrefix(name, envPrefix), "__")
	if len(parts) < 2 {
		return "", nil
	}
	found, problem := v.resolve(parts)
	if problem != "" {
		v.problems = append(v.problems, fmt.Errorf("the environment's %s: %s", name, problem))
		return "", nil
	}
	return strings.Join(found, delimiter), envText(value)
}

// resolve follows the parts of a variable's name through the configuration's types.
func (v *envVariables) resolve(parts []string) (path []string, problem string) {
	t := reflect.TypeFor[Config]()
	for i, part := range parts {
		key := strings.ToLower(part)
		switch {
		case t.Kind() == reflect.Struct:
			fields := fieldsOf(t)
			next, known := fields[key]
			if !known {
				near := append(slices.Clone(parts[:i]), strings.ToUpper(nearest.Of(key, slices.Sorted(maps.Keys(fields)))))
				return nil, fmt.Sprintf("there is no field %s; did you mean %s%s?", dotted(append(path, key)), envPrefix, strings.Join(near, "__"))
			}
			t = behind(next)
		case t == reflect.TypeFor[map[string]QueueConfig]():
			names := slices.DeleteFunc(slices.Clone(v.queues), func(name string) bool { return variablePart(name) != strings.ToUpper(part) })
			if len(names) != 1 {
				return nil, fmt.Sprintf("%d queues of the configuration file are written %s: a variable can change a queue of the file, not add one", len(names), part)
			}
			key, t = names[0], behind(t.Elem())
		case t.Kind() == reflect.Map:
			t = t.Elem()
		default:
			return nil, fmt.Sprintf("%s has no parts", dotted(path))
		}
		path = append(path, key)
	}
	if t.Kind() == reflect.Struct || t.Kind() == reflect.Map || t == reflect.TypeFor[[]RouteConfig]() {
		return nil, fmt.Sprintf("%s is a section and cannot be set as a whole", dotted(path))
	}
	return path, ""
}

// variablePart writes a queue's name as a part of a variable's.
func variablePart(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r - 'a' + 'A'
		}
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
}
