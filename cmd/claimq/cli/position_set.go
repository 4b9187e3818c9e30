package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/internal/nearest"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/position"
	"github.com/claimq/claimq/internal/queuelist"
)

// positionSetFlags are what position set takes.
type positionSetFlags struct {
	queue, topic, to string
	partitions       []int32
	all, dryRun      bool
	asJSON           bool
	order            orderFlags
}

// movedView is what position set prints.
type movedView struct {
	Queue string     `json:"queue"`
	Moves []moveView `json:"moves"`
	Notes []string   `json:"notes"`
	Who   string     `json:"who,omitempty"`
	Why   string     `json:"why,omitempty"`
	Dry   bool       `json:"dry_run,omitempty"`
}

type moveView struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      *int64 `json:"from"`
	To        int64  `json:"to"`
}

func newPositionSetCommand(env *Env) *cobra.Command {
	var flags positionSetFlags
	command := &cobra.Command{
		Use:   "set",
		Short: "Read records again, or skip them, also while workers run",
		Long: `Moves the position of partitions to an offset, a time, or an end of the topic. A
worker that runs them is fenced: its running batch is rolled back, and it goes on at
the new position. The order is kept in claimq.audit.

What is read again is not handled again: a message whose id is remembered is dropped
as a duplicate, and one that is delayed or dead stays what it is. Only what was
handled before the ids are remembered, or by a queue with claims: none, is handled
again. Records that are skipped are never handled.`,
		Example: `  claimq position set --queue orders --topic orders --all --to 2026-01-31T00:00:00Z --why "INC-12"
  claimq position set --queue orders --partition 3 --to 4711 --why "skip a poison batch" --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			view, err := env.setPosition(cmd.Context(), &flags)
			if err != nil {
				return err
			}
			return env.printMoved(view, flags.asJSON)
		},
	}
	f := command.Flags()
	f.StringVarP(&flags.queue, "queue", "q", "", "the `queue` (required)")
	f.StringVarP(&flags.topic, "topic", "t", "", "the `topic` (default: the queue's, when it has one only)")
	f.Int32SliceVarP(&flags.partitions, "partition", "p", nil, "the `partition`; more than one with commas between")
	f.BoolVar(&flags.all, "all", false, "all partitions of the topic")
	f.StringVar(&flags.to, "to", "", "`where` to: an offset, earliest, latest, or a time as 2026-01-31T00:00:00Z (required)")
	f.BoolVar(&flags.dryRun, "dry-run", false, "say what would be done, and do nothing")
	f.BoolVar(&flags.asJSON, "json", false, "print JSON")
	flags.order.add(command)
	return command
}

// check reads what needs neither Kafka nor a database.
func (f *positionSetFlags) check() (target, error) {
	switch {
	case f.queue == "":
		return target{}, usageError("--queue is missing: say which queue is meant")
	case f.all == (len(f.partitions) > 0):
		return target{}, usageError("say which partitions are meant: --partition N, or --all, and not both")
	case f.to == "":
		return target{}, usageError("--to is missing: an offset, earliest, latest, or a time as 2026-01-31T00:00:00Z")
	}
	return parseTarget(f.to)
}

func parseTarget(text string) (target, error) {
	if text == "earliest" || text == "latest" {
		return target{word: text}, nil
	}
	if offset, err := strconv.ParseInt(text, 10, 64); err == nil {
		if offset < 0 {
			return target{}, usageError("--to %d: an offset cannot be negative", offset)
		}
		return target{offset: offset}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return target{at: at}, nil
	}
	return target{}, usageError("--to %q is none of: an offset, earliest, latest, a time as 2026-01-31T00:00:00Z", text)
}

func (e *Env) setPosition(ctx context.Context, flags *positionSetFlags) (*movedView, error) {
	to, err := flags.check()
	if err != nil {
		return nil, err
	}
	var who, why string
	if !flags.dryRun {
		if who, why, err = e.order(flags.order); err != nil {
			return nil, err
		}
	}
	config, err := e.load()
	if err != nil {
		return nil, err
	}
	pool, queue, err := e.openQueue(ctx, config, flags.queue)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	kafka, err := e.openKafka(ctx, config)
	if err != nil {
		return nil, err
	}
	defer kafka.close()
	schema := pgschema.Schema(config.schema())
	stands, err := position.Partitions(ctx, pool, schema, queue.Number)
	if err != nil {
		return nil, err
	}
	if flags.topic, err = chooseTopic(flags.topic, queue, topicNames(stands)); err != nil {
		return nil, err
	}
	moves, err := kafka.moves(ctx, flags, to)
	if err != nil {
		return nil, err
	}
	view := &movedView{Queue: queue.Name, Who: who, Why: why, Dry: flags.dryRun}
	if flags.dryRun {
		view.plan(moves, stands)
	} else if err := view.carryOut(ctx, pool, schema, position.Order{Queue: queue.Number, Moves: moves, Who: who, Why: why}); err != nil {
		return nil, err
	}
	view.explain(queue)
	return view, nil
}

// chooseTopic returns the topic that is meant; of several it must be named.
func chooseTopic(name string, queue queuelist.Queue, topics []string) (string, error) {
	all := strings.Join(topics, ", ")
	switch {
	case len(topics) == 0:
		return "", exitWith(ExitNothing, fmt.Errorf("queue %s has no position yet: the first worker that starts it makes one, where its `start` says", queue.Name))
	case name == "" && len(topics) == 1:
		return topics[0], nil
	case name == "":
		return "", usageError("--topic is missing: queue %s reads %s", queue.Name, all)
	case !slices.Contains(topics, name):
		return "", exitWith(ExitNothing, fmt.Errorf("queue %s does not read topic %q; did you mean %q? it reads: %s", queue.Name, name, nearest.Of(name, topics), all))
	}
	return name, nil
}

// moves asks Kafka which offsets are meant.
func (k *kafkaAdmin) moves(ctx context.Context, flags *positionSetFlags, to target) ([]position.Move, error) {
	ask, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	details, err := k.admin.ListTopics(ask, flags.topic)
	if err != nil {
		return nil, kafkaError(err)
	}
	detail, ok := details[flags.topic]
	if !ok || detail.Err != nil {
		return nil, exitWith(ExitNothing, fmt.Errorf("Kafka has no topic %q, or this user may not see it", flags.topic))
	}
	partitions := detail.Partitions.Numbers()
	if !flags.all {
		for _, number := range flags.partitions {
			if !slices.Contains(partitions, number) {
				return nil, exitWith(ExitNothing, fmt.Errorf("topic %s has no partition %d: it has %d, counted from 0", flags.topic, number, len(partitions)))
			}
		}
		partitions = slices.Clone(flags.partitions)
		slices.Sort(partitions)
		partitions = slices.Compact(partitions)
	}
	found, err := k.resolve(ctx, flags.topic, partitions, to)
	if err != nil {
		return nil, err
	}
	moves := make([]position.Move, 0, len(partitions))
	for _, number := range partitions {
		at, _ := found.Lookup(flags.topic, number)
		moves = append(moves, position.Move{
			TopicID: [16]byte(detail.ID), TopicName: flags.topic, Partition: number, Next: at.Offset, LeaderEpoch: at.LeaderEpoch,
		})
	}
	return moves, nil
}

// plan fills in what would be done.
func (v *movedView) plan(moves []position.Move, stands []position.Partition) {
	for _, move := range moves {
		view := moveView{Topic: move.TopicName, Partition: move.Partition, To: move.Next}
		for _, p := range stands {
			if p.TopicID == move.TopicID && p.Partition == move.Partition {
				view.From = p.Next
			}
		}
		v.Moves = append(v.Moves, view)
	}
}

// setTimeout bounds the wait for batches that are just committing.
const setTimeout = time.Minute

func (v *movedView) carryOut(ctx context.Context, pool *pgxpool.Pool, schema pgschema.Schema, order position.Order) error {
	ctx, cancel := context.WithTimeout(ctx, setTimeout)
	defer cancel()
	moved, err := position.Set(ctx, pool, schema, order)
	if _, notBegun := errors.AsType[*position.NotBegunError](err); notBegun {
		return exitWith(ExitNothing, err)
	}
	if err != nil {
		return err
	}
	for _, m := range moved {
		v.Moves = append(v.Moves, moveView{Topic: m.TopicName, Partition: m.Partition, From: m.From, To: m.Next})
	}
	return nil
}

// explain says what the moves mean for the messages between.
func (v *movedView) explain(queue queuelist.Queue) {
	var again, skipped int64
	for _, m := range v.Moves {
		if m.From == nil {
			continue
		}
		again += max(*m.From-m.To, 0)
		skipped += max(m.To-*m.From, 0)
	}
	if again > 0 && queue.ClaimsNothing {
		v.Notes = append(v.Notes, counted(again, "offset is", "offsets are")+" read again, and the messages handled again: the queue claims nothing (claims: none)")
	} else if again > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%s read again. Messages that were handled since %s are remembered and dropped as duplicates; older ones may be forgotten, and are then handled again. What is delayed or dead stays what it is",
			counted(again, "offset is", "offsets are"), timeText(queue.RememberedSince)))
	}
	if skipped > 0 {
		v.Notes = append(v.Notes, counted(skipped, "offset is", "offsets are")+" skipped: what stands there is never handled, unless the position is set back")
	}
	if !v.Dry {
		v.Notes = append(v.Notes, "workers that run these partitions are fenced and go on from the new position")
	}
}

func (e *Env) printMoved(v *movedView, asJSON bool) error {
	if asJSON {
		return e.printJSON(v)
	}
	t := newTable("TOPIC", "PARTITION", "FROM", "TO", "OFFSETS").alignRight(1, 2, 3)
	for _, m := range v.Moves {
		t.row(m.Topic, m.Partition, orDash(m.From), m.To, rereadText(m.From, m.To))
	}
	if err := e.printTable(t); err != nil {
		return err
	}
	e.printf("\n")
	if v.Dry {
		e.printf("A dry run: nothing was done.\n")
	}
	for _, note := range v.Notes {
		e.printf("%s.\n", oneLine(strings.ToUpper(note[:1])+note[1:]))
	}
	return nil
}
