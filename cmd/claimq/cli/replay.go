package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dlq"
)

func newReplayCommand(env *Env) *cobra.Command {
	command := group("replay", "Try dead letters again: order, watch, pause, cancel",
		newReplayStartCommand(env), newReplayListCommand(env), newReplayShowCommand(env),
		newReplayTurnCommand(env, "pause"), newReplayTurnCommand(env, "resume"), newReplayTurnCommand(env, "cancel"))
	command.Aliases = []string{"requeue", "redrive"}
	return command
}

// replayView is a replay as it is printed.
type replayView struct {
	Replay      uuid.UUID `json:"replay"`
	State       string    `json:"state"`
	Who         string    `json:"who"`
	Why         string    `json:"why"`
	CreatedAt   string    `json:"created_at"`
	EndedAt     string    `json:"ended_at,omitempty"`
	Rate        float64   `json:"rate"`
	Ramp        string    `json:"ramp"`
	InFlight    int       `json:"in_flight"`
	Chosen      string    `json:"chosen"`
	Listed      int64     `json:"listed"`
	Queued      int64     `json:"queued"`
	Resolved    int64     `json:"resolved"`
	Dead        int64     `json:"dead_again"`
	Done        int64     `json:"already_done"`
	Skipped     int64     `json:"skipped"`
	Quarantined int64     `json:"quarantined"`
	Cancelled   int64     `json:"cancelled"`
}

func viewReplay(r *dlq.Replay) replayView {
	v := replayView{
		Replay: r.ID, State: string(r.State), Who: r.Who, Why: r.Why, CreatedAt: jsonTime(r.CreatedAt),
		Rate: r.Rate, Ramp: formatDuration(r.Ramp), InFlight: r.InFlight, Chosen: r.Chosen,
		Listed: r.Listed, Queued: r.Queued, Resolved: r.Resolved, Dead: r.Dead,
		Done: r.Done, Skipped: r.Skipped, Quarantined: r.Quarantined, Cancelled: r.Cancelled,
	}
	if !r.EndedAt.IsZero() {
		v.EndedAt = jsonTime(r.EndedAt)
	}
	return v
}

// planView is what a replay does, or would do, with what was chosen.
type planView struct {
	Replay           *uuid.UUID      `json:"replay"`
	Dry              bool            `json:"dry_run"`
	Chosen           int64           `json:"chosen"`
	Listed           int64           `json:"listed"`
	AlreadyDone      int64           `json:"already_done"`
	Stale            int64           `json:"stale"`
	OutsideWindow    int64           `json:"outside_window"`
	Quarantined      int64           `json:"quarantined"`
	AlreadyReplaying int64           `json:"already_replaying"`
	Others           []uuid.UUID     `json:"other_replays,omitempty"`
	OverLimit        int64           `json:"over_limit"`
	Causes           []planCauseView `json:"causes"`
	Sample           []uuid.UUID     `json:"sample"`
}

type planCauseView struct {
	Cause   uuid.UUID `json:"cause"`
	Queue   string    `json:"queue"`
	Topic   string    `json:"topic"`
	Reason  string    `json:"reason"`
	Class   string    `json:"class"`
	Letters int64     `json:"letters"`
}

func viewPlan(p *dlq.ReplayPlan, dry bool) planView {
	v := planView{
		Dry: dry, Chosen: p.Chosen, Listed: p.Listed, AlreadyDone: p.AlreadyDone, Stale: p.Stale, OutsideWindow: p.OutsideWindow,
		Quarantined: p.Quarantined, AlreadyReplaying: p.AlreadyReplaying, Others: p.Others, OverLimit: p.OverLimit,
		Causes: []planCauseView{}, Sample: append([]uuid.UUID{}, p.Sample...),
	}
	if !dry {
		v.Replay = &p.Replay
	}
	for _, c := range p.Causes {
		v.Causes = append(v.Causes, planCauseView(c))
	}
	return v
}

// print tells the plan to people.
func (v *planView) print(e *Env) error {
	e.printf("%s chosen; %d to be tried.\n", counted(v.Chosen, "dead letter is", "dead letters are"), v.Listed)
	for _, left := range []struct {
		n    int64
		what string
	}{
		{v.AlreadyDone, "done already: their ids are claimed, nothing is to be made again (`claimq dlq discard` closes them)"},
		{v.Stale, "stale: newer messages of their order key went past (--stale takes them too)"},
		{v.OutsideWindow, "outside the dedup window: whether they were done otherwise since is not known (--outside-window takes them too)"},
		{v.Quarantined, "quarantined: replayed too often already (--max-replays)"},
		{v.AlreadyReplaying, fmt.Sprintf("already_replaying, in %v", v.Others)},
		{v.OverLimit, "over --limit"},
	} {
		if left.n > 0 {
			e.printf("  left out: %d %s\n", left.n, left.what)
		}
	}
	if len(v.Causes) > 0 {
		t := newTable("CAUSE", "QUEUE", "TOPIC", "REASON", "CLASS", "LETTERS").alignRight(5)
		for _, c := range v.Causes {
			t.row(c.Cause, c.Queue, c.Topic, c.Reason, c.Class, c.Letters)
		}
		if err := e.printTable(t); err != nil {
			return err
		}
	}
	if v.Dry {
		if len(v.Sample) > 0 {
			e.printf("First of them: %v\n", v.Sample[0])
		}
		e.printf("A dry run: nothing was done.\n")
	} else {
		e.printf("Replay %s\n", v.Replay)
	}
	return nil
}

// leftOut reports whether something that was chosen is not tried for a reason that
// the order did not give itself.
func (v *planView) leftOut() bool {
	return v.AlreadyDone+v.Stale+v.OutsideWindow+v.Quarantined+v.AlreadyReplaying > 0
}

// driveReplay drives a replay to its end, or until the first signal, and tells how
// it went. Killing it loses nothing: the database knows how far it is.
func (e *Env) driveReplay(ctx context.Context, pool *pgxpool.Pool, store *dlq.Store, config *Config, id uuid.UUID) (*dlq.Replay, error) {
	logger, err := e.logger(config)
	if err != nil {
		return nil, err
	}
	driving, _, release := e.signals(ctx, logger)
	defer release()
	line := progressLine{env: e}
	replay, err := store.DriveReplay(driving, pool, id, line.show)
	line.end()
	if driving.Err() != nil {
		return nil, exitWith(ExitPartial, fmt.Errorf("interrupted; replay %s is kept as it stands. `claimq replay resume %s` goes on, `claimq replay cancel %s` takes it back", id, id, id))
	}
	if err == nil && replay == nil {
		err = errors.New("the replay is gone")
	}
	return replay, err
}

// printReplay tells how a replay stands; what is not resolved decides the exit code.
func (e *Env) printReplay(r *dlq.Replay, asJSON bool) error {
	v := viewReplay(r)
	if asJSON {
		return e.printJSON(v)
	}
	t := newTable("FIELD", "VALUE")
	t.row("replay", v.Replay)
	t.row("state", v.State)
	t.row("ordered", fmt.Sprintf("%s by %s: %s", v.CreatedAt, v.Who, v.Why))
	t.row("ended", v.EndedAt)
	rate := "as fast as they are taken"
	if v.Rate > 0 {
		rate = fmt.Sprintf("%g a second, ramp %s", v.Rate, v.Ramp)
	}
	t.row("rate", rate)
	t.row("chosen by", v.Chosen)
	t.row("waiting", v.Listed)
	t.row("in the delay queue", v.Queued)
	t.row("resolved", v.Resolved)
	t.row("dead again", v.Dead)
	t.row("already done", v.Done)
	t.row("left out", v.Skipped)
	t.row("quarantined", v.Quarantined)
	t.row("cancelled", v.Cancelled)
	return e.printTable(t)
}

// replayExit is ExitPartial when something that was to be tried is not resolved.
func replayExit(r *dlq.Replay) error {
	if r.Dead+r.Cancelled+r.Open() == 0 {
		return nil
	}
	return exitWith(ExitPartial, nil)
}

// A progressLine shows how a replay goes: in place on a terminal, else a line every
// ten seconds.
type progressLine struct {
	env   *Env
	last  time.Time
	shown bool
}

func (p *progressLine) show(r *dlq.Replay) {
	terminal := p.env.onTerminal()
	every := 10 * time.Second
	if terminal {
		every = 200 * time.Millisecond
	}
	if time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	total := max(r.Tried(), 1)
	settled := r.Resolved + r.Dead + r.Cancelled
	start, end := "", "\n"
	if terminal {
		const width = 30
		filled := int(settled * width / total)
		start, end = fmt.Sprintf("\r[%-*s] ", width, bar(filled)), ""
	}
	_, _ = fmt.Fprintf(p.env.Stderr, "%s%d of %d settled: %d resolved, %d dead again, %d in the delay queue%s", start, settled, total, r.Resolved, r.Dead, r.Queued, end)
	p.shown = p.shown || terminal
}

func (p *progressLine) end() {
	if p.shown {
		_, _ = fmt.Fprintln(p.env.Stderr)
	}
}

func bar(n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = '='
	}
	return string(text)
}
