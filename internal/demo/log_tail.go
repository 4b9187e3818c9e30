package demo

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// A logTail passes lines on, or keeps the last of them.
type logTail struct {
	to   io.Writer
	mu   sync.Mutex
	kept []string
}

// keptLines is how many lines of log an error shows.
const keptLines = 15

func newLogTail(to io.Writer) *logTail { return &logTail{to: to} }

func (l *logTail) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		return l.to.Write(text)
	}
	for line := range bytes.Lines(text) {
		l.kept = append(l.kept, strings.TrimRight(string(line), "\n"))
	}
	l.kept = l.kept[max(len(l.kept)-keptLines, 0):]
	return len(text), nil
}

func (l *logTail) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.kept, "\n")
}
