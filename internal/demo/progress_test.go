package demo

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestLinesTellProgressAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := &lines{w: &out, start: time.Now(), every: time.Hour, again: time.Hour}
	l.Say("starting %s", "it")
	l.Done(1000, 50_000, "3 delayed")
	l.Done(2000, 50_000, "")
	l.Close()
	want := regexp.MustCompile(`^ +\d+\.\ds  starting it\n +\d+\.\ds  1,000 of 50,000 done; 3 delayed\n$`)
	if !want.Match(out.Bytes()) {
		t.Errorf("told:\n%s", out.String())
	}
}

func TestLinesRepeatThemselvesOnlyAfterAWhile(t *testing.T) {
	t.Parallel()
	for again, want := range map[time.Duration]int{time.Hour: 1, 0: 3} {
		var out bytes.Buffer
		l := &lines{w: &out, start: time.Now(), again: again}
		for range 3 {
			l.Done(5, 10, "")
		}
		if n := strings.Count(out.String(), "5 of 10 done"); n != want {
			t.Errorf("told again after %s: %d times, want %d:\n%s", again, n, want, out.String())
		}
	}
}

func TestABarIsRedrawnBelowWhatIsSaid(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := NewProgress(&out, true)
	p.Say("starting")
	p.Done(10, 100, "3 delayed")
	p.Say("consumer 2 joins")
	p.Done(100, 100, "")
	p.Close()
	p.Say("after it")
	text := out.String()
	for _, part := range []string{"starting\n", "3 delayed", "consumer 2 joins\n", "after it\n", "/100"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in %q", part, text)
		}
	}
	if after := text[strings.LastIndex(text, "after it"):]; strings.Contains(after, "/100") {
		t.Errorf("the bar comes back after Close: %q", after)
	}
}

func TestNumbersAreGrouped(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 50_000: "50,000", 1_234_567: "1,234,567", -1: "-1", -123: "-123", -1234: "-1,234"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestTheBusiestSecondIsOfASecond(t *testing.T) {
	t.Parallel()
	var m rateMeter
	at := time.Unix(0, 0)
	for i, done := range []int{0, 100, 200, 1000, 1100, 1200, 1300, 1400} {
		m.note(at.Add(time.Duration(i)*250*time.Millisecond), done)
	}
	if got := m.busiest(); got != 1100 { // from 0 to 1100 in the first second
		t.Errorf("busiest second %d, want 1100", got)
	}
	var short rateMeter
	short.note(at, 0)
	short.note(at.Add(300*time.Millisecond), 1000)
	if got := short.busiest(); got != 0 {
		t.Errorf("busiest second of a third of one: %d, want 0", got)
	}
}

func TestTheLogsTailIsBounded(t *testing.T) {
	t.Parallel()
	l := newLogTail(nil)
	for i := range 100 {
		_, _ = l.Write([]byte("line " + grouped(i) + "\n"))
	}
	got := strings.Split(l.tail(), "\n")
	if len(got) != keptLines || got[len(got)-1] != "line 99" {
		t.Errorf("%d lines, the last %q", len(got), got[len(got)-1])
	}
	var out bytes.Buffer
	passing := newLogTail(&out)
	_, _ = passing.Write([]byte("x\n"))
	if out.String() != "x\n" || passing.tail() != "" {
		t.Errorf("passed on %q, kept %q", out.String(), passing.tail())
	}
}
