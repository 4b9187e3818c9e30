package cli

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDurationsWithDays(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "90s": 90 * time.Second, "8d": 8 * day, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour,
		"1d1ns": day + 1, "2562047h": 2562047 * time.Hour, "106751d": 106751 * day, "0d": 0,
	} {
		got, err := parseDuration(text)
		if err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "8", "8 d", "-1s", "1d-1s", "1w", "d8", "1d2d", "eight", "200000d", "106751d23h50m", "1e3s", "99999999999999999999d"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", text, got)
		}
	}
}

func TestADurationSurvivesBeingWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.OneOf(
			rapid.Map(rapid.Int64Range(0, 1<<62), func(n int64) time.Duration { return time.Duration(n) }),
			rapid.Map(rapid.Int64Range(0, 100_000), func(n int64) time.Duration { return time.Duration(n) * time.Hour }),
			rapid.Map(rapid.Int64Range(0, 100_000), func(n int64) time.Duration { return time.Duration(n) * time.Minute }),
		).Draw(t, "duration")
		got, err := parseDuration(formatDuration(d))
		if err != nil || got != d {
			t.Fatalf("%d is written %s and read as %d, %v", d, formatDuration(d), got, err)
		}
	})
	for d, want := range map[time.Duration]string{
		0: "0", 8 * 24 * time.Hour: "8d", 36 * time.Hour: "1d12h", time.Hour: "1h", 90 * time.Minute: "1h30m", time.Minute: "1m",
		3*time.Minute + 18*time.Second: "3m18s", 24*time.Hour + time.Second: "1d1s", 10 * time.Minute: "10m", 20 * time.Hour: "20h",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("formatDuration(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Size{
		"0": 0, "4096": 4096, "4096B": 4096, "64MiB": 64 << 20, "1.5kib": 1536, "2GB": 2e9, "1 MB": 1e6, "1GiB": 1 << 30,
	} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "MiB", "1XB", "1e9", "99999999GiB", "1..5MB"} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}
