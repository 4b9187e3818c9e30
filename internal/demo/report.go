package demo

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/claimq/claimq/dlq"
)

// reasonTexts say what the demo's dead letters died of, in the order of reading.
var reasonTexts = []struct {
	reason dlq.Reason
	text   string
}{
	{dlq.Conflict, "the id was used before for another payload"},
	{dlq.Undecodable, "not an order"},
	{dlq.MissingID, "no idempotency key"},
	{dlq.Permanent, "the handler said that no attempt will work"},
	{dlq.Exhausted, "all attempts failed"},
}

// Print writes the account for people. Its last line says whether it holds.
func (a *Account) Print(w io.Writer) {
	var out strings.Builder
	row := func(name string, n int, note string) {
		fmt.Fprintf(&out, "  %-26s%9s  %s", name, grouped(n), note)
		text := strings.TrimRight(out.String(), " ")
		out.Reset()
		out.WriteString(text + "\n")
	}
	out.WriteString("The account, from the database and the topics:\n\n")
	row("sent", a.Sent, "records acknowledged by Kafka")
	row("distinct", a.Distinct, "idempotency keys among them")
	row("applied once", a.AppliedOnce, "one row each, the payload that was sent first")
	row("repeats dropped", a.RepeatsDropped, "same key and payload at other offsets")
	row("retried", a.Retried, "failed, waited in the delay queue, then worked")
	row("kept in order", a.Waited, "waited behind a failed order of their customer")
	row("dead letters", sum(a.Dead), fmt.Sprintf("rows; %s in the dead-letter topic", grouped(a.DeadPublished)))
	for _, r := range a.reasons() {
		row("  "+string(r), a.Dead[r], reasonText(r))
	}
	row("effects published", a.Effects, fmt.Sprintf("and %s copies under the same id", grouped(a.EffectCopies)))
	row("uncommitted at kill -9", a.KilledWith, "orders or more, written by the killed consumer, done by the other one")
	row("lost", a.Lost, "")
	row("doubled", a.Doubled, "")
	row("messages a second", int(a.PerSecond), fmt.Sprintf("%s in %.1f s, %.1f s of it until the killed consumer's session ended", grouped(a.Drained), a.Seconds, a.Outage))
	row("  in the busiest second", a.BusiestSecond, "")
	out.WriteString("\n")
	for _, broken := range a.Broken {
		out.WriteString("BROKEN  " + broken + "\n")
	}
	if a.Holds() {
		out.WriteString("It holds: every order took effect once, and everything else is accounted for.\n")
	} else {
		fmt.Fprintf(&out, "It does not hold. The same mix again: claimq demo --seed %d --orders %d\n", a.Seed, a.Sent)
	}
	_, _ = io.WriteString(w, out.String()) // a reader that has gone away is no failure of the run
}

// reasons are those of the dead, the known ones first.
func (a *Account) reasons() (list []dlq.Reason) {
	for _, r := range reasonTexts {
		if a.Dead[r.reason] > 0 {
			list = append(list, r.reason)
		}
	}
	for _, r := range slices.Sorted(maps.Keys(a.Dead)) {
		if !slices.Contains(list, r) {
			list = append(list, r)
		}
	}
	return list
}

func reasonText(reason dlq.Reason) string {
	for _, r := range reasonTexts {
		if r.reason == reason {
			return r.text
		}
	}
	return ""
}

func sum(counts map[dlq.Reason]int) (n int) {
	for _, count := range counts {
		n += count
	}
	return n
}
