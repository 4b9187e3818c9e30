package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/claimq/claimq/internal/statusview"
)

func (e *Env) printStatus(ctx context.Context, reader *statusReader, flags *statusFlags) error {
	report, err := reader.read(ctx, flags.queue)
	if err != nil {
		return err
	}
	if flags.asJSON {
		return e.printJSON(report)
	}
	if len(report.Queues) == 0 {
		e.printf("No queue is known yet: the first worker that starts one makes it known.\n")
		return nil
	}
	t := newTable("QUEUE", "STATE", "SCHEDULED", "READY", "BLOCKED", "LAST HOUR", "AVG", "BROKEN", "LAG", "WORKERS", "OWNER", "POSITION", "REMEMBERS SINCE").
		alignRight(2, 3, 4, 5, 6, 7, 8, 9)
	for i := range report.Queues {
		t.row(statusCells(report.At, &report.Queues[i])...)
	}
	if err := e.printTable(t); err != nil {
		return err
	}
	e.printf("\noutbox: %s\n", outboxText(report.Outbox))
	for i := range report.Queues {
		for _, note := range statusNotes(report.At, &report.Queues[i]) {
			e.printf("%s: %s\n", oneLine(report.Queues[i].Name), oneLine(note))
		}
	}
	return nil
}

func statusCells(now time.Time, q *statusview.Queue) []any {
	written, remembers := "", "claims nothing"
	if q.PositionAt != nil {
		written = ageText(now.Sub(*q.PositionAt)) + " ago"
	}
	if q.RememberedSince != nil {
		remembers = timeText(*q.RememberedSince)
	}
	average := ""
	if q.AverageMS != nil {
		average = fmt.Sprintf("%.1f ms", *q.AverageMS)
	}
	return []any{
		q.Name, q.State, q.Scheduled, q.Ready + q.InProgress, q.Blocked, orDash(q.ProcessedHour), average, q.Broken, orDash(q.Lag),
		q.Workers, q.Team, written, remembers,
	}
}

// statusNotes says what a person should look at.
func statusNotes(now time.Time, q *statusview.Queue) (notes []string) {
	if q.PausedAt != nil {
		notes = append(notes, fmt.Sprintf("paused %s ago by %s: %s", ageText(now.Sub(*q.PausedAt)), q.PausedBy, q.PausedWhy))
	}
	if q.Silent > 0 {
		notes = append(notes, counted(q.Silent, "worker is", "workers are")+" silent without a good-bye: crashed, frozen, or cut off from the database")
	}
	if q.Replaying > 0 {
		notes = append(notes, counted(q.Replaying, "dead letter is", "dead letters are")+" on the way back")
	}
	if q.Fenced != nil && *q.Fenced > 0 {
		notes = append(notes, "workers were fenced "+counted(*q.Fenced, "time", "times"))
	}
	if q.Contact != "" && (q.Broken > 0 || q.Silent > 0 || q.PausedAt != nil) {
		notes = append(notes, "contact: "+q.Contact)
	}
	return notes
}

func outboxText(o outboxView) string {
	seconds := func(s float64) string { return ageText(time.Duration(s * float64(time.Second))) }
	text := "empty"
	if o.Waiting > 0 {
		more := ""
		if o.AtLeast {
			more = " or more"
		}
		text = fmt.Sprintf("%d%s to publish, the oldest added %s ago", o.Waiting, more, seconds(o.OldestSeconds))
	}
	if o.Delayed > 0 {
		text += fmt.Sprintf("; %d wait for a time of their own", o.Delayed)
	}
	if o.Held > 0 {
		text += fmt.Sprintf("; %d held, the oldest for %s", o.Held, seconds(o.HeldSeconds))
	}
	return text
}
