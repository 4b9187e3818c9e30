package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress is told what a run does. Its methods are called by one goroutine at a
// time.
type Progress interface {
	// Say tells an event, in one line.
	Say(format string, args ...any)
	// Done tells how many of all messages have their fate, and what is going on.
	Done(done, all int, detail string)
	// Close ends the telling.
	Close()
}

type silent struct{}

func (silent) Say(string, ...any)    {}
func (silent) Done(int, int, string) {}
func (silent) Close()                {}

// NewProgress tells on a writer: with a bar when it is a terminal, else with a line
// every second.
func NewProgress(w io.Writer, terminal bool) Progress {
	l := &lines{w: w, start: time.Now(), every: time.Second, again: 5 * time.Second}
	if terminal {
		return &bar{lines: l}
	}
	return l
}

// lines tells in lines, each with the seconds since the start.
type lines struct {
	w     io.Writer
	start time.Time
	// every is the least time between two lines of progress, again after how long one
	// that says nothing new is told.
	every, again time.Duration
	mu           sync.Mutex
	last         time.Time
	told         string
}

func (l *lines) Say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A reader that has gone away is no failure of the run.
	_, _ = fmt.Fprintf(l.w, "%6.1fs  %s\n", time.Since(l.start).Seconds(), fmt.Sprintf(format, args...))
}

func (l *lines) Done(done, all int, detail string) {
	l.mu.Lock()
	text := doneText(done, all, detail)
	since := time.Since(l.last)
	tell := since >= l.every && text != l.told || since >= l.again
	if tell {
		l.last, l.told = time.Now(), text
	}
	l.mu.Unlock()
	if tell {
		l.Say("%s", text)
	}
}

func (l *lines) Close() {}

func doneText(done, all int, detail string) string {
	text := fmt.Sprintf("%s of %s done", grouped(done), grouped(all))
	if detail != "" {
		text += "; " + detail
	}
	return text
}

// bar tells events in lines and keeps a bar below them.
type bar struct {
	*lines
	bar *progressbar.ProgressBar
}

func (b *bar) Say(format string, args ...any) {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
	b.lines.Say(format, args...)
	if b.bar != nil {
		_ = b.bar.RenderBlank()
	}
}

func (b *bar) Done(done, all int, detail string) {
	if b.bar == nil {
		b.bar = progressbar.NewOptions(all, progressbar.OptionSetWriter(b.w), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionSetItsString("messages"), progressbar.OptionSetWidth(24), progressbar.OptionThrottle(50*time.Millisecond),
			progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish())
	}
	b.bar.Describe(fmt.Sprintf("%-28s", detail))
	_ = b.bar.Set(min(done, all-1)) // the last step is Close's: a full bar takes no more text
}

func (b *bar) Close() {
	if b.bar != nil {
		_ = b.bar.Clear()
		b.bar = nil
	}
}

// grouped writes a number as people read it: 50,000.
func grouped[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	var text strings.Builder
	for i, digit := range digits {
		if i > 0 && digits[i-1] != '-' && (len(digits)-i)%3 == 0 {
			text.WriteByte(',')
		}
		text.WriteRune(digit)
	}
	return text.String()
}
