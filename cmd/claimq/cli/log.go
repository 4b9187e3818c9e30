package cli

import (
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/claimq/claimq/internal/nearest"
)

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// logger returns the logger that a command uses, on Stderr.
func (e *Env) logger(c *Config) (*slog.Logger, error) {
	level, known := logLevels[c.Log.Level]
	var errs []error
	if !known {
		errs = append(errs, oneOf([]string{"log", "level"}, c.Log.Level, "debug", "info", "warn", "error"))
	}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewTextHandler(e.Stderr, options)
	switch c.Log.Format {
	case "text":
	case "json":
		handler = slog.NewJSONHandler(e.Stderr, options)
	default:
		errs = append(errs, oneOf([]string{"log", "format"}, c.Log.Format, "text", "json"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, configError(placed(c, err))
	}
	return slog.New(handler), nil
}

// oneOf reports a word that is not among those that a field can have, or returns
// nil when it is.
func oneOf(path []string, word string, words ...string) error {
	if slices.Contains(words, word) {
		return nil
	}
	return fieldErrorf(path, "%q is unknown; did you mean %s? there is: %s", word, nearest.Of(word, words), strings.Join(words, ", "))
}
