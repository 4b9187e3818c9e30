package cli

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dlq"
)

// decisionTexts are what differs between the three commands.
var decisionTexts = map[dlq.Decision]struct{ short, long, example, done string }{
	dlq.Discard: {
		"Say that dead letters are not needed",
		`Discards letters that are dead: they are kept, nothing is tried, and an order key that
they held goes on. It can be undone with "claimq dlq restore".`,
		`  claimq dlq discard --cause 0190f7e8-0000-5000-8000-000000000000 --why "test orders, ticket 4711"`,
		"discarded",
	},
	dlq.Restore: {
		"Make discarded letters dead again",
		"Undoes a discard: the letters wait for a decision again.",
		`  claimq dlq restore --queue orders --from 2026-01-31T08:00:00Z --why "they were needed after all"`,
		"restored",
	},
	dlq.Erase: {
		"Remove what letters hold, for good",
		`Removes key, value, headers, the error's text and the shown id of letters that are
dead, resolved or discarded. It cannot be undone. That the letter was there, why it
died and who erased it is kept.`,
		`  claimq dlq erase --id 4711 --why "a person asked to be forgotten"`,
		"erased",
	},
}

// decidedView is what the three print.
type decidedView struct {
	Decision string `json:"decision"`
	Letters  int64  `json:"letters"`
	Who      string `json:"who,omitempty"`
	Why      string `json:"why,omitempty"`
	Dry      bool   `json:"dry_run,omitempty"`
}

func newDLQDecideCommand(env *Env, decision dlq.Decision) *cobra.Command {
	var flags selectFlags
	var order orderFlags
	var limit int
	var dryRun, asJSON bool
	texts := decisionTexts[decision]
	command := &cobra.Command{
		Use:     string(decision) + " [LETTER…]",
		Short:   texts.short,
		Long:    texts.long + "\n\nThe order is kept in claimq.audit. Exit code 3 says that no letter matched.",
		Example: texts.example,
		RunE: func(cmd *cobra.Command, args []string) error {
			view := decidedView{Decision: string(decision), Dry: dryRun}
			var err error
			if !dryRun {
				if view.Who, view.Why, err = env.order(order); err != nil {
					return err
				}
			}
			pool, store, config, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			selection, err := flags.selection(cmd.Context(), pool, config, args)
			if err != nil {
				return err
			}
			if err := flags.asked(&selection); err != nil {
				return err
			}
			if dryRun {
				view.Letters, err = store.CountDecidable(cmd.Context(), pool, decision, selection)
			} else {
				view.Letters, err = store.Decide(cmd.Context(), pool, decision, selection, dlq.Operator{Who: view.Who, Why: view.Why}, limit)
			}
			if err != nil && view.Letters > 0 {
				err = exitWith(ExitPartial, err)
			}
			if err != nil {
				return err
			}
			return env.printDecided(view, texts.done, asJSON)
		},
	}
	flags.addAll(command)
	order.add(command)
	command.Flags().IntVar(&limit, "limit", 0, "at most this many `letters` (default: all that match)")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "say how many it would be, and do nothing")
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func (e *Env) printDecided(v decidedView, done string, asJSON bool) error {
	switch {
	case asJSON:
		if err := e.printJSON(v); err != nil {
			return err
		}
	case v.Dry && v.Letters > 0:
		e.printf("A dry run: %s would be %s.\n", counted(v.Letters, "letter", "letters"), done)
	case v.Letters > 0:
		e.printf("%s %s, by %s.\n", counted(v.Letters, "letter is", "letters are"), done, oneLine(v.Who))
	}
	if v.Letters == 0 {
		return noLetters()
	}
	return nil
}

func newDLQExportCommand(env *Env) *cobra.Command {
	var flags selectFlags
	command := &cobra.Command{
		Use:   "export [LETTER…]",
		Short: "Write dead letters as JSON lines",
		Long: `Writes letters to the standard output, a line of JSON each, with everything that
they hold, payloads too. "claimq dlq import" makes the same letters of them, here or
in another database. Without --state it takes letters in every state.`,
		Example: `  claimq dlq export --queue orders --state dead > orders.jsonl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, store, config, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			selection, err := flags.selection(cmd.Context(), pool, config, args)
			if err != nil {
				return err
			}
			if err := flags.asked(&selection); err != nil {
				return err
			}
			written, err := store.Export(cmd.Context(), pool, selection, env.Stdout)
			if err == nil && written == 0 {
				return noLetters()
			}
			return err
		},
	}
	flags.addAll(command)
	return command
}

func newDLQImportCommand(env *Env) *cobra.Command {
	var order orderFlags
	var asJSON bool
	command := &cobra.Command{
		Use:   "import FILE",
		Short: "Take dead letters from JSON lines",
		Long: `Stores the letters of a file that "claimq dlq export" wrote; "-" is the standard
input. What is there already, by its id or by where its record came from, is left
alone. It can be run again after it was interrupted. The queues must be known here.`,
		Example: `  claimq dlq import orders.jsonl --why "moved from the old cluster"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			who, why, err := env.order(order)
			if err != nil {
				return err
			}
			in := io.NopCloser(env.Stdin)
			if args[0] != "-" {
				if in, err = os.Open(args[0]); err != nil {
					return err
				}
			}
			defer func() { _ = in.Close() }()
			pool, store, _, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			done, err := store.Import(cmd.Context(), pool, in, dlq.Operator{Who: who, Why: why})
			if asJSON {
				if printErr := env.printJSON(map[string]int64{"stored": done.Stored, "known": done.Known}); printErr != nil {
					return printErr
				}
			} else {
				env.printf("%s stored, %d were known.\n", counted(done.Stored, "letter is", "letters are"), done.Known)
			}
			switch {
			case err != nil && done.Stored > 0:
				return exitWith(ExitPartial, err)
			case err == nil && done == dlq.Imported{}:
				return noLetters()
			}
			return err
		},
	}
	order.add(command)
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}
