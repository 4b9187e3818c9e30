package cli

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/outbox"
)

func newOutboxCommand(env *Env) *cobra.Command {
	return group("outbox", "Show and settle what is to be published",
		newOutboxStatusCommand(env),
		newOutboxListCommand(env),
		newOutboxRetryCommand(env),
		newOutboxDiscardCommand(env),
	)
}

// withOutbox opens the configured database and hands it to do.
func (e *Env) withOutbox(ctx context.Context, do func(pool *pgxpool.Pool, box *outbox.Outbox) error) error {
	config, err := e.load()
	if err != nil {
		return err
	}
	pool, err := e.openPool(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	box, err := outbox.New(outbox.Config{Schema: config.schema()})
	if err != nil {
		return err
	}
	return do(pool, box)
}

// outboxReport is what outbox status prints.
type outboxReport struct {
	outboxView
	Slices []sliceView     `json:"slices"`
	Topics []heldTopicView `json:"held_topics"`
}

// sliceView is a part of the outbox and its relay.
type sliceView struct {
	Slice        int     `json:"slice"`
	Of           int     `json:"of"`
	Relay        string  `json:"relay"`
	Leased       bool    `json:"leased"`
	PlaceSeconds float64 `json:"place_age_seconds"`
}

// heldTopicView sums up what is held of a topic.
type heldTopicView struct {
	Topic   string    `json:"topic"`
	Refused int       `json:"refused"`
	Behind  int       `json:"behind"`
	HeldAt  time.Time `json:"held_at"`
	NextAt  time.Time `json:"next_at"`
	Reason  string    `json:"reason"`
}

func newOutboxStatusCommand(env *Env) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Show what waits to be published, who publishes it, and what is held",
		Long: `Shows how many committed records are not yet in Kafka, which relay has each slice
of the outbox, and, by topic, the records that could not be sent and are held.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return env.withOutbox(ctx, func(pool *pgxpool.Pool, box *outbox.Outbox) error {
				report, err := readOutbox(ctx, pool, box)
				if err != nil {
					return err
				}
				return env.printOutbox(report, asJSON)
			})
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func readOutbox(ctx context.Context, pool *pgxpool.Pool, box *outbox.Outbox) (*outboxReport, error) {
	depth, err := box.Depth(ctx, pool)
	if err != nil {
		return nil, err
	}
	slices, err := box.Slices(ctx, pool)
	if err != nil {
		return nil, err
	}
	topics, err := box.HeldTopics(ctx, pool)
	if err != nil {
		return nil, err
	}
	report := &outboxReport{outboxView: viewOutbox(depth), Slices: []sliceView{}, Topics: []heldTopicView{}}
	for _, s := range slices {
		report.Slices = append(report.Slices, sliceView{Slice: s.Index, Of: s.Of, Relay: s.Instance, Leased: s.Leased, PlaceSeconds: s.PlaceAge.Seconds()})
	}
	for _, t := range topics {
		report.Topics = append(report.Topics, heldTopicView(t))
	}
	return report, nil
}

func (e *Env) printOutbox(report *outboxReport, asJSON bool) error {
	if asJSON {
		return e.printJSON(report)
	}
	e.printf("outbox: %s\n\n", outboxText(report.outboxView))
	if len(report.Slices) == 0 {
		e.printf("No relay has run yet: `claimq run` and `claimq relay` do it.\n")
	} else {
		t := newTable("SLICE", "RELAY", "LEASED", "PLACE WRITTEN").alignRight(0)
		for _, s := range report.Slices {
			leased := "no: its relay has ended or is cut off"
			if s.Leased {
				leased = "yes"
			}
			t.row(s.Slice, s.Relay, leased, ageText(time.Duration(s.PlaceSeconds*float64(time.Second)))+" ago")
		}
		if err := e.printTable(t); err != nil {
			return err
		}
	}
	if len(report.Topics) == 0 {
		return nil
	}
	e.printf("\n")
	t := newTable("TOPIC", "REFUSED", "BEHIND", "HELD SINCE", "NEXT TRY", "REASON OF THE FIRST").alignRight(1, 2)
	for _, topic := range report.Topics {
		t.row(topic.Topic, topic.Refused, topic.Behind, timeText(topic.HeldAt), timeText(topic.NextAt), topic.Reason)
	}
	return e.printTable(t)
}

// heldView is a held record as it is printed.
type heldView struct {
	Seq       int64     `json:"seq"`
	ID        uuid.UUID `json:"id"`
	Topic     string    `json:"topic"`
	Key       []byte    `json:"key,omitempty"`
	Scope     string    `json:"scope"`
	Reason    string    `json:"reason"`
	Attempts  int       `json:"attempts"`
	CreatedAt time.Time `json:"created_at"`
	HeldAt    time.Time `json:"held_at"`
	NextAt    time.Time `json:"next_at"`
}

func viewHeld(list []outbox.Held) []heldView {
	views := make([]heldView, len(list))
	for i, h := range list {
		views[i] = heldView(h)
	}
	return views
}

func newOutboxListCommand(env *Env) *cobra.Command {
	var query outbox.HeldQuery
	var asJSON bool
	command := &cobra.Command{
		Use:   "list",
		Short: "List the records that could not be sent and are held",
		Long: `Lists records that could not be sent and those that wait behind them, in the order
in which they were added. SCOPE tells which:

  row    the brokers refuse this record
  topic  its topic takes nothing: it is missing, or may not be written
  key    an earlier record of its topic and key is held

The relay tries row and topic again with growing delays; key follows by itself. Exit
code 3 says that nothing is held.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if query.Limit < 1 || query.After < 0 {
				return usageError("--limit must be at least 1, and --after at least 0")
			}
			return env.withOutbox(cmd.Context(), func(pool *pgxpool.Pool, box *outbox.Outbox) error {
				list, err := box.ListHeld(cmd.Context(), pool, query)
				if err != nil {
					return err
				}
				return env.printHeld(list, query, asJSON)
			})
		},
	}
	f := command.Flags()
	f.StringVarP(&query.Topic, "topic", "t", "", "only this `topic`")
	f.IntVar(&query.Limit, "limit", 100, "at most this `many`")
	f.Int64Var(&query.After, "after", 0, "only those behind this `number`, the SEQ of the last one printed before")
	f.BoolVar(&query.Keys, "keys", false, "show the records' keys, which a login of the reader role may not see")
	f.BoolVar(&asJSON, "json", false, "print JSON; keys are base64")
	return command
}

func (e *Env) printHeld(list []outbox.Held, query outbox.HeldQuery, asJSON bool) error {
	var nothing error
	if len(list) == 0 {
		nothing = exitWith(ExitNothing, nil)
	}
	if asJSON {
		if err := e.printJSON(viewHeld(list)); err != nil {
			return err
		}
		return nothing
	}
	if nothing != nil {
		e.printf("Nothing is held.\n")
		return nothing
	}
	header := []string{"SEQ", "ID", "TOPIC", "SCOPE", "ATTEMPTS", "HELD", "NEXT TRY", "REASON"}
	if query.Keys {
		header = append(header, "KEY")
	}
	t := newTable(header...).alignRight(0, 4)
	for i := range list {
		h := &list[i]
		next := timeText(h.NextAt)
		if h.Scope == "key" {
			next = ""
		}
		t.row(h.Seq, h.ID, h.Topic, h.Scope, h.Attempts, timeText(h.HeldAt), next, h.Reason, string(h.Key))
	}
	if err := e.printTable(t); err != nil {
		return err
	}
	if len(list) == query.Limit {
		e.printf("\nThere may be more: --after %d\n", list[len(list)-1].Seq)
	}
	return nil
}
