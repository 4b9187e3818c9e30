package cli

import (
	"context"
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

// clientLog is the log of Kafka's client, which tells every step of a group's life
// as information: that is for who looks for a mistake. What it warns of is shown.
type clientLog struct{ slog.Handler }

// Enabled is of slog.Handler.
func (l clientLog) Enabled(ctx context.Context, level slog.Level) bool {
	return l.Handler.Enabled(ctx, slog.LevelDebug) || level >= slog.LevelWarn && l.Handler.Enabled(ctx, level)
}

// WithAttrs is of slog.Handler.
func (l clientLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return clientLog{l.Handler.WithAttrs(attrs)}
}

// WithGroup is of slog.Handler.
func (l clientLog) WithGroup(name string) slog.Handler { return clientLog{l.Handler.WithGroup(name)} }

// oneOf reports a word that is not among those that a field can have, or returns
// nil when it is.
func oneOf(path []string, word string, words ...string) error {
	if slices.Contains(words, word) {
		return nil
	}
	return fieldErrorf(path, "%q is unknown; did you mean %s? there is: %s", word, nearest.Of(word, words), strings.Join(words, ", "))
}
