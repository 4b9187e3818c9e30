package cli

import (
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dedup"
)

// forgotten is what claims forget prints.
type forgotten struct {
	Forgotten claimView `json:"forgotten"`
	Who       string    `json:"who"`
	Why       string    `json:"why"`
}

func newClaimsForgetCommand(env *Env) *cobra.Command {
	var scope scopeFlags
	var flags orderFlags
	var asJSON bool
	command := &cobra.Command{
		Use:   "forget ID",
		Short: "Forget an id, so that the next message with it is handled again",
		Long: `Deletes the claim of an id, and its result. What the handler wrote stays: undo it
first, where it is to be made again. The order is kept in claimq.audit.

The message does not come back by itself: its producer sends it again, or
"claimq position set" reads it again. It is then new: the handler runs, and its
effects go out under the same ids and target keys as the first time, so that a
consumer or a target that drops repeats drops them.

Exit code 3 says that the id was not there.`,
		Example: `  claimq claims forget --queue orders 4711 --why "INC-12: row deleted by mistake"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			who, why, err := env.order(flags)
			if err != nil {
				return err
			}
			config, err := env.load()
			if err != nil {
				return err
			}
			pool, queue, err := env.openQueue(cmd.Context(), config, scope.queue)
			if err != nil {
				return err
			}
			defer pool.Close()
			identity := scope.identity(args[0])
			found, err := dedup.New(dedup.Config{Schema: config.schema()}).Forget(cmd.Context(), pool, identity, dedup.Order{Who: who, Why: why})
			if err != nil {
				return err
			}
			if found == nil {
				return notClaimed(&scope, identity, queue)
			}
			return env.printForgotten(forgotten{Forgotten: viewClaim(identity, found), Who: who, Why: why}, asJSON)
		},
	}
	scope.add(command)
	flags.add(command)
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func (e *Env) printForgotten(f forgotten, asJSON bool) error {
	if asJSON {
		return e.printJSON(f)
	}
	if err := f.Forgotten.print(e); err != nil {
		return err
	}
	e.printf("\nForgotten, by %s. What the handler wrote stays.\n", oneLine(f.Who))
	if f.Forgotten.First != nil {
		e.printf("If the message comes again it is handled as new; `claimq position set` can read it again from %s[%d]@%d.\n",
			f.Forgotten.First.Topic, f.Forgotten.First.Partition, f.Forgotten.First.Offset)
	} else {
		e.printf("If the message comes again it is handled as new.\n")
	}
	e.printf("Its effects then go out under the same ids and target keys as the first time.\n")
	return nil
}
