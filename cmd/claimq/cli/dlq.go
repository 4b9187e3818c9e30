package cli

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dlq"
)

func newDLQCommand(env *Env) *cobra.Command {
	command := group("dlq", "See dead letters and decide about them",
		newDLQCausesCommand(env), newDLQListCommand(env), newDLQShowCommand(env), newDLQNoteCommand(env),
		newDLQDecideCommand(env, dlq.Discard), newDLQDecideCommand(env, dlq.Restore), newDLQDecideCommand(env, dlq.Erase),
		newDLQExportCommand(env), newDLQImportCommand(env))
	command.Aliases = []string{"dead", "broken"}
	return command
}

// openLetters connects to the database and the dead letters there. The caller
// closes the pool.
func (e *Env) openLetters(ctx context.Context) (*pgxpool.Pool, *dlq.Store, *Config, error) {
	config, err := e.load()
	if err != nil {
		return nil, nil, nil, err
	}
	pool, err := e.openPool(ctx, config)
	if err != nil {
		return nil, nil, nil, err
	}
	store, err := dlq.New(dlq.Config{Schema: config.schema()})
	if err != nil {
		pool.Close()
		return nil, nil, nil, err
	}
	return pool, store, config, nil
}

// causeView is a cause as it is printed.
type causeView struct {
	Cause   uuid.UUID   `json:"cause"`
	Queue   string      `json:"queue"`
	Reason  string      `json:"reason"`
	Class   string      `json:"class"`
	Letters int64       `json:"letters"`
	Dead    int64       `json:"dead"`
	First   string      `json:"first_died_at"`
	Last    string      `json:"last_died_at"`
	Samples []uuid.UUID `json:"samples"`
	Message string      `json:"message"`
	Notes   []string    `json:"notes"`
}

func newDLQCausesCommand(env *Env) *cobra.Command {
	var flags selectFlags
	var limit int
	var asJSON bool
	command := &cobra.Command{
		Use:   "causes",
		Short: "Group dead letters by what they died of",
		Long: `Groups letters by queue, reason, error class and message, with the numbers and ids
in the message masked. Without a filter it looks at everything that waits for a
decision. Exit code 3 says that there is none.`,
		Example: `  claimq dlq causes
  claimq dlq causes --queue orders --from 2026-01-31T08:00:00+01:00 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, store, config, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			selection, err := flags.selection(cmd.Context(), pool, config, nil)
			if err != nil {
				return err
			}
			causes, err := store.Causes(cmd.Context(), pool, flags.in(selection, dlq.Dead, dlq.Replaying), limit)
			if err != nil {
				return err
			}
			return env.printCauses(causes, asJSON)
		},
	}
	flags.add(command)
	command.Flags().IntVar(&limit, "limit", 100, "at most this many `causes`")
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func (e *Env) printCauses(causes []dlq.CauseCount, asJSON bool) error {
	views := make([]causeView, 0, len(causes))
	t := newTable("CAUSE", "QUEUE", "REASON", "CLASS", "LETTERS", "DEAD", "FIRST", "LAST", "MESSAGE", "NOTES").alignRight(4, 5)
	for _, c := range causes {
		views = append(views, causeView{
			Cause: c.Cause, Queue: c.Queue, Reason: string(c.Reason), Class: c.Class, Letters: c.Letters, Dead: c.Dead,
			First: jsonTime(c.First), Last: jsonTime(c.Last), Samples: c.Samples, Message: c.Message, Notes: c.Notes,
		})
		t.row(c.Cause, c.Queue, c.Reason, c.Class, c.Letters, c.Dead, timeText(c.First), timeText(c.Last), clipped(c.Message), strings.Join(c.Notes, "; "))
	}
	var err error
	if asJSON {
		err = e.printJSON(map[string]any{"causes": views})
	} else if len(causes) > 0 {
		err = e.printTable(t)
	}
	if err == nil && len(causes) == 0 {
		return noLetters()
	}
	return err
}

func newDLQNoteCommand(env *Env) *cobra.Command {
	var by string
	command := &cobra.Command{
		Use:     "note CAUSE TEXT",
		Short:   "Write down what was found out about a cause",
		Long:    "Keeps a note beside a cause, shown with it in `claimq dlq causes`. Exit code 3 says\nthat no letter has the cause.",
		Example: `  claimq dlq note 0190f7e8-0000-5000-8000-000000000000 "fixed in 1.4, ticket 4711"`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cause, err := uuid.Parse(args[0])
			if err != nil {
				return usageError("%q is no cause's id: `claimq dlq causes` lists them", args[0])
			}
			who, note, err := env.order(orderFlags{by: by, why: args[1]})
			if err != nil {
				return err
			}
			pool, store, _, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			found, err := store.Note(cmd.Context(), pool, cause, who, note)
			if err == nil && !found {
				return noLetters()
			}
			return err
		},
	}
	command.Flags().StringVar(&by, "by", "", "`who` writes it (default CLAIMQ_OPERATOR, else user@host)")
	return command
}
