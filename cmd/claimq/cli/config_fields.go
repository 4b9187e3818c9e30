package cli

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/v2"

	"github.com/claimq/claimq/internal/nearest"
)

// envText is a value from the environment: text, whatever the field's type.
type envText string

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// fieldsOf returns the configuration's names of a struct's fields.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for field := range t.Fields() {
		if name := field.Tag.Get("koanf"); name != "" {
			fields[name] = field.Type
		}
	}
	return fields
}

// behind returns what a pointer points to.
func behind(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// unknownFields reports every key that no field has, with the nearest name.
func unknownFields(path []string, value any, t reflect.Type) (problems []error) {
	t = behind(t)
	switch value := value.(type) {
	case map[string]any:
		fields := map[string]reflect.Type{}
		if t.Kind() == reflect.Struct {
			fields = fieldsOf(t)
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			at := append(slices.Clone(path), key)
			switch {
			case t.Kind() == reflect.Map:
				problems = append(problems, unknownFields(at, value[key], t.Elem())...)
			case t.Kind() != reflect.Struct: // decode tells
			case fields[key] == nil:
				names := slices.Sorted(maps.Keys(fields))
				problems = append(problems, fieldErrorf(at, "there is no such field; did you mean %s? known here: %s",
					nearest.Of(key, names), strings.Join(names, ", ")))
			default:
				problems = append(problems, unknownFields(at, value[key], fields[key])...)
			}
		}
	case []any:
		if t.Kind() == reflect.Slice {
			for i, element := range value {
				at := append(slices.Clone(path), "["+strconv.Itoa(i)+"]")
				problems = append(problems, unknownFields(at, element, t.Elem())...)
			}
		}
	}
	return problems
}

// decode fills the configuration in. Unknown fields are left to unknownFields.
func decode(k *koanf.Koanf, c *Config) (problems []error) {
	err := k.UnmarshalWithConf("", c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result:     c,
		TagName:    "koanf",
		DecodeHook: decodeValue,
		MatchName:  func(key, field string) bool { return key == field },
	}})
	return decodeProblems(err)
}

// decodeProblems takes mapstructure's tree of errors apart: the innermost errors
// that name a field are the problems. Only names and kinds are told, never a value.
func decodeProblems(err error) (problems []error) {
	switch err := err.(type) { //nolint:errorlint // this is what walks the tree
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		for _, part := range err.Unwrap() {
			problems = append(problems, decodeProblems(part)...)
		}
		return problems
	case *mapstructure.DecodeError:
		if _, deeper := errors.AsType[*mapstructure.DecodeError](err.Unwrap()); deeper {
			return decodeProblems(err.Unwrap())
		}
		return []error{fieldErrorf(splitName(err.Name()), "%v", err.Unwrap())}
	}
	if inner := errors.Unwrap(err); inner != nil {
		return decodeProblems(inner)
	}
	return []error{err}
}

// splitName turns mapstructure's name of a field, queues[orders].routes[0].name,
// into a path.
func splitName(name string) (path []string) {
	if rest, found := strings.CutPrefix(name, "queues["); found {
		queue, rest, _ := strings.Cut(rest, "]")
		path, name = []string{"queues", queue}, strings.TrimPrefix(rest, ".")
	}
	for part := range strings.SplitSeq(name, ".") {
		field, index, indexed := strings.Cut(part, "[")
		if field != "" {
			path = append(path, field)
		}
		if indexed {
			path = append(path, "["+index)
		}
	}
	return path
}

// kindName names a type for people who write YAML.
func kindName(t reflect.Type) string {
	if t == nil {
		return "nothing"
	}
	switch t {
	case reflect.TypeFor[Duration]():
		return "a duration with its unit, as 90s, 12h or 8d,"
	case reflect.TypeFor[Size]():
		return "a size, as 64MiB,"
	}
	switch t = behind(t); t.Kind() {
	case reflect.String:
		return "a text (numbers, true and false stand in quotes to be one)"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a section with fields"
	default:
		return "a value of type " + t.String()
	}
}

// decodeValue converts what YAML and the environment have into a field's type. It
// refuses every value of another kind, so that the library that calls it meets
// none, whose errors could quote them.
func decodeValue(from, to reflect.Value) (any, error) {
	value := from.Interface()
	target := behind(to.Type())
	if at, ok := value.(time.Time); ok && target.Kind() == reflect.String {
		return at.Format(time.RFC3339Nano), nil // YAML takes an unquoted time for one
	}
	variable, isVariable := value.(envText)
	text, isText := value.(string)
	if isVariable {
		text, isText = string(variable), true
	}
	if number, ok := value.(int); ok && (number == 0 && target == reflect.TypeFor[Duration]() || target == reflect.TypeFor[Size]()) {
		text, isText = strconv.Itoa(number), true
	}
	switch {
	case isText && reflect.PointerTo(target).Implements(textUnmarshaler):
		return unmarshalText(text, target)
	case isVariable:
		return parseVariable(text, target)
	case !fits(from, target):
		return nil, fmt.Errorf("%s is needed, not %s", kindName(target), kindName(from.Type()))
	}
	return value, nil
}

// unmarshalText makes a value of a type whose pointer implements textUnmarshaler.
func unmarshalText(text string, target reflect.Type) (any, error) {
	result := reflect.New(target)
	if reader, ok := reflect.TypeAssert[encoding.TextUnmarshaler](result); ok {
		if err := reader.UnmarshalText([]byte(text)); err != nil {
			return nil, err
		}
	}
	return result.Elem().Interface(), nil
}

// fits reports whether a value of the file is of the kind that a field takes.
func fits(value reflect.Value, target reflect.Type) bool {
	switch kind := value.Kind(); target.Kind() {
	case reflect.Struct, reflect.Map:
		return kind == reflect.Map || value.Type() == target
	case reflect.Float64:
		return kind == reflect.Float64 || kind == reflect.Int
	case reflect.Int, reflect.Int64:
		return kind == reflect.Int && target != reflect.TypeFor[Duration]()
	default:
		return kind == target.Kind()
	}
}

// parseVariable reads a variable's text as the field's type.
func parseVariable(text string, target reflect.Type) (any, error) {
	var value any = text
	var err error
	switch target.Kind() {
	case reflect.Bool:
		value, err = strconv.ParseBool(text)
	case reflect.Int:
		value, err = strconv.Atoi(text)
	case reflect.Float64:
		value, err = strconv.ParseFloat(text, 64)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is needed", kindName(target))
	}
	return value, nil
}
