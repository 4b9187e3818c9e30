package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/queuelist"
)

// selectFlags choose dead letters. All that are given must hold.
type selectFlags struct {
	queue, reason, cause, class, tenant, key, header, text string
	from, before                                           string
	ids, states                                            []string
	minAttempts, maxAttempts                               int
	all                                                    bool
	command                                                *cobra.Command
}

func (f *selectFlags) add(command *cobra.Command) {
	f.command = command
	flags := command.Flags()
	flags.StringVarP(&f.queue, "queue", "q", "", "letters of this `queue`")
	flags.StringVar(&f.reason, "reason", "", "that died for this `reason`: exhausted, permanent, conflict, missing_id, undecodable")
	flags.StringVar(&f.cause, "cause", "", "of this `cause`, by its id in \"claimq dlq causes\"")
	flags.StringVar(&f.class, "class", "", "with this error `class`")
	flags.StringVar(&f.tenant, "tenant", "", "of this `tenant`")
	flags.StringSliceVar(&f.ids, "id", nil, "with this message `id`; more than one with commas between")
	flags.StringVar(&f.key, "key", "", "with this Kafka record `key`")
	flags.StringVar(&f.from, "from", "", "that died at this `time` or later, with its zone: 2026-01-31T08:00:00+01:00")
	flags.StringVar(&f.before, "to", "", "that died before this `time`, itself not included")
	flags.IntVar(&f.minAttempts, "min-attempts", 0, "after at least this many `attempts`")
	flags.IntVar(&f.maxAttempts, "max-attempts", 0, "after at most this many `attempts`")
	flags.StringVar(&f.header, "header", "", "that have this header, as `name` or name=value")
	flags.StringVar(&f.text, "text", "", "whose value contains this `text`")
	flags.StringSliceVar(&f.states, "state", nil, "in this `state`: dead, replaying, resolved, discarded, erased")
}

// addAll is for commands that act: without a filter they need --all.
func (f *selectFlags) addAll(command *cobra.Command) {
	f.add(command)
	command.Flags().BoolVar(&f.all, "all", false, "all letters: needed when nothing else chooses some")
}

// in returns the selection within these states unless --state says others.
func (f *selectFlags) in(s dlq.Selection, states ...dlq.State) dlq.Selection {
	if s.States == nil {
		s.States = states
	}
	return s
}

// asked refuses a selection that chooses everything unless --all says so.
func (f *selectFlags) asked(s *dlq.Selection) error {
	if s.Empty() && !f.all {
		return usageError("nothing chooses letters, so all would be meant: give a filter such as --queue or --cause, letters' ids, or --all")
	}
	return nil
}

// selection reads the flags, and letters' ids from the arguments.
func (f *selectFlags) selection(ctx context.Context, pool *pgxpool.Pool, config *Config, args []string) (s dlq.Selection, err error) {
	given := f.command.Flags().Changed
	s.Reason, s.Class, s.MinAttempts, s.MaxAttempts, s.Text = dlq.Reason(f.reason), f.class, f.minAttempts, f.maxAttempts, f.text
	if given("tenant") {
		s.Tenant = &f.tenant
	}
	if given("key") {
		s.Key = append([]byte{}, f.key...)
	}
	if given("id") {
		s.Shown = f.ids
	}
	if name, value, valued := strings.Cut(f.header, "="); given("header") {
		if s.Header = name; valued {
			s.HeaderValue = &value
		}
	}
	if s.DiedFrom, err = parseZoned("--from", f.from); err != nil {
		return s, err
	}
	if s.DiedBefore, err = parseZoned("--to", f.before); err != nil {
		return s, err
	}
	if f.cause != "" {
		if s.Cause, err = uuid.Parse(f.cause); err != nil {
			return s, usageError("--cause %q is no cause's id: `claimq dlq causes` lists them", f.cause)
		}
	}
	for _, arg := range args {
		id, err := uuid.Parse(arg)
		if err != nil {
			return s, usageError("%q is no letter's id: `claimq dlq list` shows them; --id chooses by the message's", arg)
		}
		s.IDs = append(s.IDs, id)
	}
	all := []dlq.State{dlq.Dead, dlq.Replaying, dlq.Resolved, dlq.Discarded, dlq.Erased}
	for _, state := range f.states {
		if !slices.Contains(all, dlq.State(state)) {
			return s, usageError("--state %q is none of: %v", state, all)
		}
		s.States = append(s.States, dlq.State(state))
	}
	if f.queue != "" {
		queue, err := queuelist.Find(ctx, pool, pgschema.Schema(config.schema()), f.queue)
		if _, unknown := errors.AsType[*queuelist.UnknownError](err); unknown {
			return s, exitWith(ExitNothing, err)
		}
		if err != nil {
			return s, err
		}
		s.Queue = queue.Number
	}
	return s, nil
}

// parseZoned reads a time that says its zone: without one it would mean another
// moment on another machine.
func parseZoned(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, usageError("%s %q is no time with its zone, as 2026-01-31T08:00:00+01:00 or 2026-01-31T07:00:00Z", flag, text)
	}
	return at, nil
}

// noLetters is the end of a command that found none.
func noLetters() error {
	return exitWith(ExitNothing, errors.New("no dead letter matches"))
}

func jsonTime(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// clipped shortens a message for a table.
func clipped(text string) string {
	const most = 60
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}
