package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/internal/pgschema"
)

// askTimeout bounds what a check asks Kafka or the database.
const askTimeout = 15 * time.Second

// checkKafka looks for the topics and compares how long they keep records with
// how long ids are remembered.
func (e *Env) checkKafka(ctx context.Context, config *Config, report *checkReport) error {
	options, err := e.kafkaOptions(config)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return configError(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return kafkaError(err)
	}
	var errs []error
	admin := kadm.NewClient(client)
	for i := range report.Queues {
		queue := &report.Queues[i]
		missing, err := missingTopics(ctx, admin, queue.topics)
		if err == nil && len(missing) > 0 {
			err = &consumer.MissingTopicError{Queue: queue.Queue, Topics: missing}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		warnings, err := compareRetention(ctx, admin, queue)
		report.Warnings = append(report.Warnings, warnings...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func missingTopics(ctx context.Context, admin *kadm.Client, topics []string) (missing []string, err error) {
	details, err := admin.ListTopics(ctx, topics...)
	if err != nil {
		return nil, kafkaError(err)
	}
	for _, topic := range topics {
		if d, ok := details[topic]; !ok || d.Err != nil || len(d.Partitions) == 0 {
			missing = append(missing, topic)
		}
	}
	return missing, nil
}

// compareRetention warns of topics that keep records longer than their ids are
// remembered: read again from the beginning, the older ones would be new.
func compareRetention(ctx context.Context, admin *kadm.Client, queue *contract) (warnings []string, err error) {
	if queue.Remembered == "positions only" {
		return nil, nil
	}
	resources, err := admin.DescribeTopicConfigs(ctx, queue.topics...)
	if err != nil {
		return nil, kafkaError(err)
	}
	for _, resource := range resources {
		if resource.Err != nil {
			warnings = append(warnings, fmt.Sprintf("topic %s: how long it keeps records cannot be seen: %v", resource.Name, resource.Err))
			continue
		}
		if kept, longer := keptLonger(resource.Configs, queue.retention); longer {
			warnings = append(warnings, fmt.Sprintf("topic %s keeps records %s and queue %s remembers ids for %s: if it is read again from further back than that, the older records run again",
				resource.Name, kept, queue.Queue, formatDuration(queue.retention)))
		}
	}
	return warnings, nil
}

// keptLonger tells how long a topic keeps records, and whether that is longer than d.
func keptLonger(configs []kadm.Config, d time.Duration) (kept string, longer bool) {
	for _, config := range configs {
		switch value := config.MaybeValue(); config.Key {
		case "cleanup.policy":
			if strings.Contains(value, "compact") && !strings.Contains(value, "delete") {
				return "for ever (it is compacted)", true
			}
		case "retention.ms":
			ms, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				continue
			}
			if ms < 0 {
				kept, longer = "for ever (retention.ms)", true
			} else if ms > d.Milliseconds() {
				kept, longer = "for "+formatDuration(time.Duration(ms)*time.Millisecond)+" (retention.ms)", true
			}
		}
	}
	return kept, longer
}

// sqlRegisteredRule reads what a queue runs with.
const sqlRegisteredRule = `select rule, group_name from claimq.queues where name = $1`

// checkDatabase looks at the schema, the handlers' statements and the rules that
// the queues are registered with.
func (e *Env) checkDatabase(ctx context.Context, config *Config, report *checkReport) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	pool, err := e.openPool(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	registered := pgschema.Schema(config.schema()).SQL(sqlRegisteredRule)
	var errs []error
	for _, queue := range report.Queues {
		_, statements, err := config.consumerConfig(queue.Queue)
		errs = append(errs, err, checkStatements(ctx, config, pool, statements))
		var rule, group string
		err = pool.QueryRow(ctx, registered, queue.Queue).Scan(&rule, &group)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			errs = append(errs, fmt.Errorf("database: read queue %q: %w", queue.Queue, err))
		case rule == "": // claimed through the library only
		case rule != queue.rule:
			errs = append(errs, configError(&consumer.RuleChangedError{Queue: queue.Queue, Registered: rule, Configured: queue.rule}))
		case group != queue.group:
			errs = append(errs, configError(&consumer.GroupError{Queue: queue.Queue, Registered: group, Configured: queue.group}))
		}
	}
	return errors.Join(errs...)
}

// checkStatements asks the database whether handlers' statements are right.
func checkStatements(ctx context.Context, config *Config, pool *pgxpool.Pool, statements []statement) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return connectError(err)
	}
	defer conn.Release()
	var errs []error
	for _, s := range statements {
		err := s.Check(ctx, conn.Conn())
		if _, wrong := errors.AsType[*consumer.SQLError](err); wrong {
			err = configError(placed(config, fieldErrorf(append(s.path, "sql"), "%v", err)))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
