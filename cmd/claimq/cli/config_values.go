package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Secret is a text that is never printed: not by fmt, not by slog, not as JSON.
type Secret string

const hidden = "[hidden]"

// String returns "[hidden]", or nothing for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString is String: %#v must not tell it either.
func (s Secret) GoString() string { return s.String() }

// LogValue is String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Strings is a list that may be written as one text with commas.
type Strings []string

// UnmarshalText splits a text at its commas.
func (s *Strings) UnmarshalText(text []byte) error {
	*s = nil
	for part := range strings.SplitSeq(string(text), ",") {
		if part = strings.TrimSpace(part); part != "" {
			*s = append(*s, part)
		}
	}
	return nil
}

// Sources is a list of id sources that may be written as one text, one source a
// line: a comma is part of a source.
type Sources []string

// UnmarshalText splits a text into its lines.
func (s *Sources) UnmarshalText(text []byte) error {
	*s = nil
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			*s = append(*s, line)
		}
	}
	return nil
}

// A Duration is written as Go writes it, with d for days of 24 hours in front:
// 8d, 1d12h, 90m, 1.5s.
type Duration time.Duration

var dayPart = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)d`)

// UnmarshalText reads a duration; it may not be negative.
func (d *Duration) UnmarshalText(text []byte) error {
	value, err := parseDuration(string(text))
	*d = Duration(value)
	return err
}

func parseDuration(text string) (time.Duration, error) {
	malformed := errors.New("a duration is needed: a number with its unit, as 90s, 5m, 12h, 8d or 1d12h")
	var days float64
	rest := text
	if match := dayPart.FindStringSubmatch(text); match != nil {
		var err error
		if days, err = strconv.ParseFloat(match[1], 64); err != nil {
			return 0, malformed
		}
		rest = text[len(match[0]):]
	}
	var value time.Duration
	if rest != "" || text == "" {
		var err error
		if value, err = time.ParseDuration(rest); err != nil {
			return 0, malformed
		}
	}
	if value < 0 {
		return 0, errors.New("a duration cannot be negative")
	}
	total := days*float64(24*time.Hour) + float64(value)
	if total >= math.MaxInt64 {
		return 0, errors.New("the duration is longer than 292 years")
	}
	if days == 0 {
		return value, nil // exact
	}
	return time.Duration(days*float64(24*time.Hour)) + value, nil
}

// MarshalText writes what UnmarshalText reads, in days where they are whole.
func (d Duration) MarshalText() ([]byte, error) { return []byte(formatDuration(time.Duration(d))), nil }

// formatDuration is time.Duration's text with days, and without zero parts at its end.
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	const day = 24 * time.Hour
	text := ""
	if d >= day {
		text = strconv.FormatInt(int64(d/day), 10) + "d"
		if d %= day; d == 0 {
			return text
		}
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = strings.TrimSuffix(rest, "0s")
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = strings.TrimSuffix(rest, "0m")
	}
	return text + rest
}

// A Size is a number of bytes, written as 64MiB, 1.5GB, 4096 or 4096B.
type Size int

var sizeText = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)$`)

var sizeUnits = map[string]float64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	match := sizeText.FindStringSubmatch(string(text))
	if match == nil {
		return errors.New("a size is needed: a number of bytes, or one with its unit, as 512KiB, 64MiB or 2GB")
	}
	unit, ok := sizeUnits[strings.ToLower(match[2])]
	if !ok {
		return fmt.Errorf("the unit %q is unknown; the units are B, KB, MB, GB, KiB, MiB, GiB", match[2])
	}
	number, err := strconv.ParseFloat(match[1], 64)
	if err != nil || number*unit > math.MaxInt32*1024.0 {
		return errors.New("the size is larger than 2 TiB")
	}
	*s = Size(number * unit)
	return nil
}
