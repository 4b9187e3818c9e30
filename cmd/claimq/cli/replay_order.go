package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dlq"
)

// replayFlags are what replay start takes besides what chooses letters.
type replayFlags struct {
	choose                                       selectFlags
	order                                        orderFlags
	rate                                         float64
	ramp                                         time.Duration
	limit, inFlight, maxReplays                  int
	stale, outsideWindow, dryRun, detach, asJSON bool
}

func newReplayStartCommand(env *Env) *cobra.Command {
	var flags replayFlags
	command := &cobra.Command{
		Use:   "start [LETTER…]",
		Short: "Try dead letters again",
		Long: `Freezes the list of the letters that are chosen, puts them into their queue's own
delay queue in their order, and waits until the workers have settled each: resolved
when its processing commits, dead again with the next round when it fails. Other
consumer groups see nothing. Without --rate it begins with one letter and doubles.

Left out are letters whose id is claimed already, those that newer messages of their
order key went past (--stale), those first seen before ids are remembered
(--outside-window), those replayed too often, and those in another replay.

The order is durable: when this command is killed, "claimq replay resume" goes on,
from any machine. It needs workers that run.

Exit codes: 0 all that was chosen is resolved, 2 some is not, or it was interrupted,
3 nothing matched, 1 refused (already_replaying).`,
		Example: `  claimq replay start --queue orders --reason permanent --dry-run
  claimq replay start --cause 0190f7e8-0000-5000-8000-000000000000 --rate 50 --ramp 1m --why "fixed in 1.4"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.startReplay(cmd.Context(), &flags, args)
		},
	}
	flags.choose.addAll(command)
	flags.order.add(command)
	f := command.Flags()
	f.Float64Var(&flags.rate, "rate", 0, "`letters` a second at most (default: as fast as they are taken)")
	f.DurationVar(&flags.ramp, "ramp", 0, "grow to --rate over this `time`")
	f.IntVar(&flags.limit, "limit", 0, "at most this many `letters`, the oldest places first")
	f.IntVar(&flags.inFlight, "in-flight", dlq.DefaultInFlight, "at most this many `letters` in the delay queue at a time")
	f.IntVar(&flags.maxReplays, "max-replays", dlq.DefaultMaxReplays, "quarantine letters that were replayed this many `times`")
	f.BoolVar(&flags.stale, "stale", false, "also letters that newer messages of their order key went past")
	f.BoolVar(&flags.outsideWindow, "outside-window", false, "also letters first seen before ids are remembered")
	f.BoolVar(&flags.dryRun, "dry-run", false, "say what would be done, and do nothing")
	f.BoolVar(&flags.detach, "detach", false, "keep the order and return; \"claimq replay resume\" carries it out")
	f.BoolVar(&flags.asJSON, "json", false, "print JSON")
	return command
}

// startedView is what replay start prints as JSON.
type startedView struct {
	Plan   planView    `json:"plan"`
	Replay *replayView `json:"replay"`
}

func (e *Env) startReplay(ctx context.Context, flags *replayFlags, args []string) error { //nolint:cyclop // a list of steps, each with its way out
	order := dlq.ReplayOrder{
		Rate: flags.rate, Ramp: flags.ramp, Limit: flags.limit, InFlight: flags.inFlight, MaxReplays: flags.maxReplays,
		Stale: flags.stale, OutsideWindow: flags.outsideWindow,
	}
	if flags.rate < 0 || flags.limit < 0 || flags.inFlight < 1 || flags.maxReplays < 1 || flags.ramp < 0 || flags.ramp > 0 && flags.rate == 0 {
		return usageError("--rate, --ramp and --limit cannot be negative, --in-flight and --max-replays are at least 1, and --ramp needs a --rate")
	}
	var err error
	if !flags.dryRun {
		if order.Operator.Who, order.Operator.Why, err = e.order(flags.order); err != nil {
			return err
		}
	}
	pool, store, config, err := e.openLetters(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if order.Selection, err = flags.choose.selection(ctx, pool, config, args); err != nil {
		return err
	}
	if err := flags.choose.asked(&order.Selection); err != nil {
		return err
	}
	start := store.StartReplay
	if flags.dryRun {
		start = store.PreviewReplay
	}
	plan, err := start(ctx, pool, order)
	if empty, ok := errors.AsType[*dlq.EmptyReplayError](err); ok {
		plan, err = empty.Plan, nil
	}
	if err != nil {
		return err
	}
	view := startedView{Plan: viewPlan(plan, flags.dryRun || plan.Listed == 0)}
	if !flags.asJSON {
		if err := view.Plan.print(e); err != nil {
			return err
		}
	}
	if !flags.dryRun && !flags.detach && plan.Listed > 0 {
		replay, err := e.driveReplay(ctx, pool, store, config, plan.Replay)
		if err != nil {
			return err
		}
		return e.endReplay(&view, replay, flags.asJSON)
	}
	if flags.asJSON {
		if err := e.printJSON(view); err != nil {
			return err
		}
	}
	switch {
	case plan.Chosen == 0:
		return noLetters()
	case plan.Listed == 0:
		return exitWith(ExitPartial, errors.New("nothing to try: all that were chosen are left out"))
	case view.Plan.leftOut():
		return exitWith(ExitPartial, nil)
	}
	return nil
}

// endReplay tells how a replay ended that this command has started.
func (e *Env) endReplay(view *startedView, replay *dlq.Replay, asJSON bool) error {
	var err error
	if asJSON {
		ended := viewReplay(replay)
		view.Replay = &ended
		err = e.printJSON(view)
	} else {
		e.printf("\n")
		err = e.printReplay(replay, false)
	}
	if err != nil {
		return err
	}
	if view.Plan.leftOut() {
		return exitWith(ExitPartial, nil)
	}
	return replayExit(replay)
}

func newReplayListCommand(env *Env) *cobra.Command {
	var open, asJSON bool
	var limit int
	command := &cobra.Command{
		Use:     "list",
		Short:   "List replays, the newest first",
		Long:    "Lists replays with their progress. Exit code 3 says that there is none.",
		Example: "  claimq replay list --open",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, store, _, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			replays, err := store.Replays(cmd.Context(), pool, open, limit)
			if err != nil {
				return err
			}
			views := make([]replayView, 0, len(replays))
			t := newTable("REPLAY", "STATE", "ORDERED", "BY", "WHY", "WAITING", "QUEUED", "RESOLVED", "DEAD AGAIN", "LEFT OUT").alignRight(5, 6, 7, 8, 9)
			for _, r := range replays {
				views = append(views, viewReplay(r))
				t.row(r.ID, string(r.State), timeText(r.CreatedAt), r.Who, clipped(r.Why), r.Listed, r.Queued, r.Resolved, r.Dead, r.Done+r.Skipped+r.Quarantined+r.Cancelled)
			}
			if asJSON {
				err = env.printJSON(map[string]any{"replays": views})
			} else if len(replays) > 0 {
				err = env.printTable(t)
			}
			if err == nil && len(replays) == 0 {
				return exitWith(ExitNothing, errors.New("there is no replay"))
			}
			return err
		},
	}
	command.Flags().BoolVar(&open, "open", false, "only those that are running or paused")
	command.Flags().IntVar(&limit, "limit", 20, "at most this many `replays`")
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

// parseReplay reads a replay's id.
func parseReplay(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, usageError("%q is no replay's id: `claimq replay list` shows them", text)
	}
	return id, nil
}

func newReplayShowCommand(env *Env) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:     "show REPLAY",
		Short:   "Show how a replay stands",
		Long:    "Shows a replay and counts its letters by how they stand; each is counted once. Exit\ncode 3 says that there is no such replay.",
		Example: "  claimq replay show 0190f7e8-0000-7000-8000-000000000000 --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseReplay(args[0])
			if err != nil {
				return err
			}
			pool, store, _, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			replay, err := store.FindReplay(cmd.Context(), pool, id)
			if err == nil && replay == nil {
				err = exitWith(ExitNothing, fmt.Errorf("there is no replay %s", id))
			}
			if err != nil {
				return err
			}
			return env.printReplay(replay, asJSON)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

// turnTexts are what differs between pause, resume and cancel.
var turnTexts = map[string]struct{ short, long string }{
	"pause":  {"Stop feeding a replay", "Nothing more goes into the delay queue; what is there goes on. Takes effect at once,\nalso when another machine drives the replay."},
	"resume": {"Let a replay go on, and carry it out", "Goes on with a replay that was paused, or whose command was stopped or killed. Any\nnumber of commands may carry out one replay; its rate is kept all the same."},
	"cancel": {"End a replay and take back what nobody has in hand", "Nothing more is tried: letters that wait are dead again, as they were. What a worker\nhas in hand at this moment is let finish."},
}

func newReplayTurnCommand(env *Env, turn string) *cobra.Command {
	var flags orderFlags
	var asJSON bool
	texts := turnTexts[turn]
	command := &cobra.Command{
		Use:     turn + " REPLAY",
		Short:   texts.short,
		Long:    texts.long,
		Example: fmt.Sprintf("  claimq replay %s 0190f7e8-0000-7000-8000-000000000000 --why \"ticket 4711\"", turn),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseReplay(args[0])
			if err != nil {
				return err
			}
			who, why, err := env.order(flags)
			if err != nil {
				return err
			}
			return env.turnReplay(cmd.Context(), turn, id, dlq.Operator{Who: who, Why: why}, asJSON)
		},
	}
	flags.add(command)
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func (e *Env) turnReplay(ctx context.Context, turn string, id uuid.UUID, operator dlq.Operator, asJSON bool) error {
	pool, store, config, err := e.openLetters(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	switch turn {
	case "pause":
		err = store.PauseReplay(ctx, pool, id, operator)
	case "cancel":
		_, err = store.CancelReplay(ctx, pool, id, operator)
	case "resume":
		err = store.ResumeReplay(ctx, pool, id, operator)
	}
	if wrong, ok := errors.AsType[*dlq.ReplayStateError](err); ok {
		if wrong.State == "" {
			return exitWith(ExitNothing, err)
		}
		// A replay whose command was killed is still running: carry it out.
		if turn == "resume" && wrong.State == dlq.ReplayRunning {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	var replay *dlq.Replay
	if turn == "resume" {
		replay, err = e.driveReplay(ctx, pool, store, config, id)
	} else {
		replay, err = store.FindReplay(ctx, pool, id)
	}
	if err != nil {
		return err
	}
	if err := e.printReplay(replay, asJSON); err != nil {
		return err
	}
	if turn == "resume" {
		return replayExit(replay)
	}
	return nil
}
