package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkaclient"
	"github.com/claimq/claimq/migrations"
)

// A RuleChangedError says that the queue's id, scope or fingerprint rule is not the
// one it is registered with: to the new rule every message of its topics would be
// new, and every effect would be made again.
type RuleChangedError struct {
	Queue, Registered, Configured string
}

func (e *RuleChangedError) Error() string {
	return fmt.Sprintf("queue %q: its id rule has changed, so every message of its topics would look new and run again.\n  registered: %s\n  configured: %s\nGive the queue another name, try the rule with `claimq keys try`, or accept it: AcceptRuleChange, `claimq run --accept %s`",
		e.Queue, e.Registered, e.Configured, e.Queue)
}

// A GroupError says that the queue is run by another consumer group already. Two
// groups would each want every partition.
type GroupError struct {
	Queue, Registered, Configured string
}

func (e *GroupError) Error() string {
	return fmt.Sprintf("queue %q is run by consumer group %q and this worker's is %q: use one group for a queue, or another queue name for another group", e.Queue, e.Registered, e.Configured)
}

// A MissingTopicError names topics that do not exist, or that this user may not see.
type MissingTopicError struct {
	Queue  string
	Topics []string
}

func (e *MissingTopicError) Error() string {
	return fmt.Sprintf("queue %q: Kafka has no topic %s, or this user may not see it: create it, or correct `topics`", e.Queue, strings.Join(e.Topics, ", "))
}

// checkDatabase looks at the schema's version and the session's settings.
func (c *Consumer) checkDatabase(ctx context.Context) error {
	status, err := migrations.Read(ctx, c.pool, migrations.Options{Schema: c.config.Schema})
	if err != nil {
		return err
	}
	if err := status.Check(); err != nil {
		return err
	}
	var synchronous string
	p := &c.planner
	if err := c.pool.QueryRow(ctx, sqlPlanner).Scan(&p.seqscan, &p.hashjoin, &p.mergejoin, &synchronous); err != nil {
		return fmt.Errorf("read the database's settings: %w", err)
	}
	if synchronous == "off" {
		c.config.Logger.WarnContext(ctx, "synchronous_commit is off by default for this role or database: claimq turns it on for its own transactions, since a commit that a crash can undo breaks the promise",
			slog.String("queue", c.config.Queue))
	}
	return nil
}

// register makes the queue known, or finds that it is and compares.
func (c *Consumer) register(ctx context.Context) error {
	config := &c.config
	described, err := json.Marshal(map[string]any{
		"topics": config.Topics, "order": config.Order.String(), "on_dead": config.OnDead.String(),
		"dead_letter_topic": config.DeadLetterTopic, "claims": config.Claims.String(), "max_attempts": c.maxAttempts,
		"concurrency": config.Concurrency,
	})
	if err != nil {
		return fmt.Errorf("queue %q: describe the configuration: %w", config.Queue, err)
	}
	rule := config.Rules.String()
	return pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		args := []any{rule, described, config.Owner.Team, config.Owner.Contact, config.Retention}
		if _, err := tx.Exec(ctx, c.sql.register, append([]any{config.Queue, config.Group}, args...)...); err != nil {
			return fmt.Errorf("register queue %q: %w", config.Queue, err)
		}
		var group, registered string
		if err := tx.QueryRow(ctx, c.sql.registered, config.Queue).Scan(&c.queue, &group, &registered); err != nil {
			return fmt.Errorf("register queue %q: %w", config.Queue, err)
		}
		// A queue that was only claimed through the library has no rule yet.
		if registered != "" && group != config.Group {
			return &GroupError{Queue: config.Queue, Registered: group, Configured: config.Group}
		}
		if registered != "" && registered != rule && !config.AcceptRuleChange {
			return &RuleChangedError{Queue: config.Queue, Registered: registered, Configured: rule}
		}
		if _, err := tx.Exec(ctx, c.sql.reregister, append(append([]any{c.queue}, args...), config.Group)...); err != nil {
			return fmt.Errorf("register queue %q: %w", config.Queue, err)
		}
		return nil
	})
}

// connect makes the Kafka client. It joins nothing until topics are added.
func (c *Consumer) connect() (*kgo.Client, error) {
	isolation := kgo.ReadCommitted()
	if c.config.ReadUncommitted {
		isolation = kgo.ReadUncommitted()
	}
	options := append(slices.Clone(c.options),
		kgo.ConsumerGroup(c.config.Group),
		kgo.BlockRebalanceOnPoll(),
		kgo.AdjustFetchOffsetsFn(c.assign),
		kgo.OnPartitionsRevoked(c.revoked),
		kgo.OnPartitionsLost(c.lost),
		kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(c.config.CommitInterval),
		kgo.AutoCommitCallback(c.committed),
		kgo.SessionTimeout(c.config.SessionTimeout),
		kgo.HeartbeatInterval(c.config.SessionTimeout/4),
		kgo.RebalanceTimeout(c.config.RebalanceTimeout),
		kgo.FetchMaxBytes(leastFetch),
		kgo.FetchMaxPartitionBytes(leastFetch),
		kgo.WithHooks(c.fetchSize),
		kgo.FetchMaxWait(fetchMaxWait),
	)
	return kafkaclient.New(options...)
}

func (c *Consumer) checkTopics(ctx context.Context) error {
	details, err := c.admin.ListTopics(ctx, c.config.Topics...)
	if err != nil {
		return fmt.Errorf("queue %q: ask Kafka for its topics: %w", c.config.Queue, err)
	}
	var missing []string
	for _, topic := range c.config.Topics {
		if d, ok := details[topic]; !ok || d.Err != nil || len(d.Partitions) == 0 {
			missing = append(missing, topic)
		}
	}
	if len(missing) > 0 {
		return &MissingTopicError{Queue: c.config.Queue, Topics: missing}
	}
	return nil
}

// sayGoodbye takes the worker off the list that `status` shows.
func (c *Consumer) sayGoodbye() {
	ctx, cancel := context.WithTimeout(context.Background(), housekeepBudget)
	defer cancel()
	if _, err := c.pool.Exec(ctx, c.sql.workerGone, c.instance); err != nil && !errors.Is(err, context.Canceled) {
		c.config.Logger.Debug("leave the list of workers", slog.Any("error", err))
	}
}
