package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/position"
	"github.com/claimq/claimq/internal/queuelist"
)

func newPositionCommand(env *Env) *cobra.Command {
	return group("position", "Show where queues stand in Kafka, or move one",
		newPositionShowCommand(env), newPositionSetCommand(env))
}

// positionView is one partition of a queue as it is printed. What Kafka says is
// null when it does not answer, or has the topic under another id by now.
type positionView struct {
	Queue     string `json:"queue"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// Position is the next offset whose effect is not yet in Postgres.
	Position  *int64     `json:"position"`
	WrittenAt *time.Time `json:"written_at"`
	// Committed is the group's offset in Kafka, which claimq ignores.
	Committed *int64 `json:"kafka_committed"`
	Begin     *int64 `json:"kafka_begin"`
	End       *int64 `json:"kafka_end"`
	// Lag is how many offsets stand between the position and the end.
	Lag        *int64     `json:"lag"`
	Owner      string     `json:"owner,omitempty"`
	OwnerEpoch *int64     `json:"owner_epoch"`
	OwnedSince *time.Time `json:"owned_since"`
	// Recreated: Kafka's topic of this name is another one than that of the position.
	Recreated bool `json:"recreated,omitempty"`
}

// positionsView is what position show prints.
type positionsView struct {
	Positions []positionView `json:"positions"`
	Notes     []string       `json:"notes,omitempty"`
}

func newPositionShowCommand(env *Env) *cobra.Command {
	var name string
	var asJSON bool
	command := &cobra.Command{
		Use:   "show",
		Short: "Show each partition's position, owner, lag and Kafka's own offset",
		Long: `Shows, for each partition, the position: the next offset whose effect is not yet in
Postgres. A queue starts from there and nowhere else. Kafka's committed offset is
kept up for lag tools, and ignored: moving it moves nothing.

Without Kafka the positions are shown all the same, with exit code 2.`,
		Example: `  claimq position show
  claimq position show --queue orders --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			view, kafkaErr, err := env.readPositions(cmd.Context(), config, name)
			if err != nil {
				return err
			}
			if err := env.printPositions(view, asJSON); err != nil {
				return err
			}
			if kafkaErr != nil {
				return exitWith(ExitPartial, kafkaErr)
			}
			return nil
		},
	}
	command.Flags().StringVarP(&name, "queue", "q", "", "only this `queue`")
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

// readPositions reads the positions of a queue, or of all, and asks Kafka about
// each. When Kafka does not answer, the positions are returned with its error.
func (e *Env) readPositions(ctx context.Context, config *Config, name string) (view *positionsView, kafkaErr, err error) {
	pool, err := e.openPool(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	defer pool.Close()
	schema := pgschema.Schema(config.schema())
	queues, err := queuelist.All(ctx, pool, schema)
	if err != nil {
		return nil, nil, err
	}
	if name != "" {
		queue, err := queuelist.Find(ctx, pool, schema, name)
		if _, unknown := errors.AsType[*queuelist.UnknownError](err); unknown {
			return nil, nil, exitWith(ExitNothing, err)
		}
		if err != nil {
			return nil, nil, err
		}
		queues = []queuelist.Queue{queue}
	}
	view = &positionsView{Positions: []positionView{}}
	kafka, kafkaErr := e.openKafka(ctx, config)
	if kafkaErr == nil {
		defer kafka.close()
	}
	for _, queue := range queues {
		partitions, err := position.Partitions(ctx, pool, schema, queue.Number)
		if err != nil {
			return nil, nil, err
		}
		var seen *kafkaView
		if kafkaErr == nil {
			seen, kafkaErr = kafka.look(ctx, queue.Group, topicNames(partitions))
		}
		view.add(queue, partitions, seen)
	}
	return view, kafkaErr, nil
}

func topicNames(partitions []position.Partition) (names []string) {
	for i, p := range partitions {
		if i == 0 || p.TopicName != partitions[i-1].TopicName {
			names = append(names, p.TopicName)
		}
	}
	return names
}

// add adds a queue's partitions; seen is nil when Kafka does not answer.
func (v *positionsView) add(queue queuelist.Queue, partitions []position.Partition, seen *kafkaView) {
	ahead, behind := 0, 0
	for _, p := range partitions {
		view := positionView{
			Queue: queue.Name, Topic: p.TopicName, Partition: p.Partition, Position: p.Next, WrittenAt: p.WrittenAt,
			Owner: p.Owner, OwnerEpoch: p.OwnerEpoch, OwnedSince: p.OwnedSince,
		}
		seen.fill(&view, p.TopicID)
		if view.Committed != nil && view.Position != nil {
			if *view.Committed > *view.Position {
				ahead++
			} else if *view.Committed < *view.Position {
				behind++
			}
		}
		if view.Recreated {
			v.Notes = append(v.Notes, fmt.Sprintf("queue %s: topic %s was deleted and made again: the position of partition %d is that of the old topic", queue.Name, p.TopicName, p.Partition))
		}
		v.Positions = append(v.Positions, view)
	}
	if ahead > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("queue %s: Kafka's committed offset of group %s is ahead of the position in %s and is ignored: somebody has moved it, or Postgres has lost its last transactions, whose records are then read again. To skip records, use `claimq position set`", queue.Name, queue.Group, counted(ahead, "partition", "partitions")))
	}
	if behind > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("queue %s: Kafka's committed offset of group %s is behind the position in %s and is ignored: it follows a running worker by a second, or somebody has moved it. To read records again, use `claimq position set`", queue.Name, queue.Group, counted(behind, "partition", "partitions")))
	}
}

func (e *Env) printPositions(v *positionsView, asJSON bool) error {
	if asJSON {
		return e.printJSON(v)
	}
	if len(v.Positions) == 0 {
		e.printf("No queue has a position yet: the first worker that starts one makes it.\n")
		return nil
	}
	t := newTable("QUEUE", "TOPIC", "PARTITION", "POSITION", "END", "LAG", "COMMITTED", "EPOCH", "OWNER", "WRITTEN").alignRight(2, 3, 4, 5, 6, 7)
	for _, p := range v.Positions {
		t.row(p.Queue, p.Topic, p.Partition, orDash(p.Position), orDash(p.End), orDash(p.Lag), orDash(p.Committed), orDash(p.OwnerEpoch), p.Owner, e.ago(p.WrittenAt))
	}
	if err := e.printTable(t); err != nil {
		return err
	}
	for _, note := range v.Notes {
		e.printf("\nnote: %s\n", oneLine(note))
	}
	return nil
}

// counted writes a number and the word that goes with it.
func counted[T int | int64](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// orDash writes a number, or nothing, which a table shows as a dash.
func orDash(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

// ago writes how long ago something was, for people.
func (e *Env) ago(at *time.Time) string {
	if at == nil {
		return ""
	}
	return ageText(e.Now().Sub(*at)) + " ago"
}

// ageText rounds a duration to what people tell apart.
func ageText(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return "under 1s"
	case d < 10*time.Minute:
		return formatDuration(d.Round(time.Second))
	case d < 24*time.Hour:
		return formatDuration(d.Round(time.Minute))
	default:
		return formatDuration(d.Round(time.Hour))
	}
}
