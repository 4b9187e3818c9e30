package cli

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/outbox"
)

// settleFlags are what retry and discard take besides ids.
type settleFlags struct {
	topic  string
	all    bool
	asJSON bool
	order  orderFlags
}

// retried is what outbox retry prints.
type retried struct {
	Records int    `json:"records"`
	Who     string `json:"who"`
	Why     string `json:"why"`
}

// discarded is what outbox discard prints.
type discarded struct {
	Discarded []heldView `json:"discarded"`
	Who       string     `json:"who"`
	Why       string     `json:"why"`
	// Error says why the order was not carried out to its end.
	Error string `json:"error,omitempty"`
}

func newOutboxRetryCommand(env *Env) *cobra.Command {
	var flags settleFlags
	command := &cobra.Command{
		Use:   "retry [ID...]",
		Short: "Try held records now instead of when their delay ends",
		Long: `Makes held records due now, with what they wait behind: the first of their key, or
their topic. A relay that runs tries them within its next poll; what is refused again
goes on waiting, with growing delays. The order is kept in claimq.audit.

Exit code 3 says that nothing matched.`,
		Example: `  claimq outbox retry --topic shipments --why "INC-12: the topic is there now"
  claimq outbox retry 0195d3a4-1d1c-7cc0-8f0e-3d7f3f6f2b11 --why "raised max.message.bytes"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.settle(cmd.Context(), args, &flags, env.retryHeld)
		},
	}
	command.Flags().BoolVar(&flags.all, "all", false, "everything that is held")
	flags.add(command)
	return command
}

func newOutboxDiscardCommand(env *Env) *cobra.Command {
	var flags settleFlags
	command := &cobra.Command{
		Use:   "discard ID... | --topic TOPIC",
		Short: "Give held records up: they are never published",
		Long: `Deletes held records. What waits behind them in their keys is tried next. The order
is kept in claimq.audit with the records' ids and topics; their content is gone.

A record that a relay is just trying may go out all the same, and so may one of the
last minutes after a failover or a restore of the database.

Exit code 3 says that nothing matched, 2 that the order was carried out in part.`,
		Example: `  claimq outbox discard 0195d3a4-1d1c-7cc0-8f0e-3d7f3f6f2b11 --why "INC-12: too large, sent by hand"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.settle(cmd.Context(), args, &flags, env.discardHeld)
		},
	}
	flags.add(command)
	return command
}

func (f *settleFlags) add(command *cobra.Command) {
	command.Flags().StringVarP(&f.topic, "topic", "t", "", "everything that is held of this `topic`")
	command.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	f.order.add(command)
}

// selection reads which records are meant; ids stand as `claimq outbox list` prints them.
func (f *settleFlags) selection(args []string) (outbox.Selection, error) {
	what := outbox.Selection{Topic: f.topic, All: f.all}
	named := 0
	for _, given := range []bool{f.topic != "", f.all, len(args) > 0} {
		if given {
			named++
		}
	}
	if named != 1 {
		return what, usageError("say which records are meant, in one way: ids, or --topic (retry: or --all); `claimq outbox list` shows them")
	}
	for _, arg := range args {
		id, err := uuid.Parse(arg)
		if err != nil {
			return what, usageError("%q is no id of a record: `claimq outbox list` shows them", arg)
		}
		what.IDs = append(what.IDs, id)
	}
	return what, nil
}

func (e *Env) settle(ctx context.Context, args []string, flags *settleFlags,
	carryOut func(context.Context, *pgxpool.Pool, *outbox.Outbox, outbox.Selection, outbox.Order, bool) error,
) error {
	what, err := flags.selection(args)
	if err != nil {
		return err
	}
	who, why, err := e.order(flags.order)
	if err != nil {
		return err
	}
	return e.withOutbox(ctx, func(pool *pgxpool.Pool, box *outbox.Outbox) error {
		return carryOut(ctx, pool, box, what, outbox.Order{Who: who, Why: why}, flags.asJSON)
	})
}

// errNotHeld ends a command that found nothing of what it was told.
var errNotHeld = exitWith(ExitNothing, errors.New("nothing of that is held: `claimq outbox list` shows what is"))

func (e *Env) retryHeld(ctx context.Context, pool *pgxpool.Pool, box *outbox.Outbox, what outbox.Selection, order outbox.Order, asJSON bool) error {
	named, err := box.Retry(ctx, pool, what, order)
	switch {
	case err != nil:
		return err
	case named == 0:
		return errNotHeld
	case asJSON:
		return e.printJSON(retried{Records: named, Who: order.Who, Why: order.Why})
	}
	e.printf("%s due now, by %s. A relay that runs tries within its next poll; `claimq outbox list` shows what stays.\n",
		counted(named, "record is", "records are"), oneLine(order.Who))
	return nil
}

func (e *Env) discardHeld(ctx context.Context, pool *pgxpool.Pool, box *outbox.Outbox, what outbox.Selection, order outbox.Order, asJSON bool) error {
	gone, err := box.Discard(ctx, pool, what, order)
	if len(gone) == 0 {
		if err == nil {
			err = errNotHeld
		}
		return err
	}
	failed := ""
	if err != nil {
		failed, err = err.Error(), exitWith(ExitPartial, err)
	}
	if asJSON {
		if printErr := e.printJSON(discarded{Discarded: viewHeld(gone), Who: order.Who, Why: order.Why, Error: failed}); printErr != nil {
			return printErr
		}
		return err
	}
	t := newTable("SEQ", "ID", "TOPIC", "SCOPE", "REASON").alignRight(0)
	for i := range gone {
		t.row(gone[i].Seq, gone[i].ID, gone[i].Topic, gone[i].Scope, gone[i].Reason)
	}
	if printErr := e.printTable(t); printErr != nil {
		return printErr
	}
	e.printf("\n%s discarded, by %s: never published. What waits behind goes on.\n", counted(len(gone), "record is", "records are"), oneLine(order.Who))
	return err
}
