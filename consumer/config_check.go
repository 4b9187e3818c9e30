package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
)

// A ConfigError names the field of a Config that cannot work, and why.
type ConfigError struct {
	// Queue is the queue's name, as far as it is known.
	Queue string
	// Field is the Config's field.
	Field string
	// Problem says what is wrong and what would be right.
	Problem string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("queue %q: %s: %s", e.Queue, e.Field, e.Problem)
}

var queueName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$`)

// shortestCommitInterval is the Kafka client's own limit.
const shortestCommitInterval = 100 * time.Millisecond

// withDefaults returns the config with every zero field filled in.
func (c Config) withDefaults() Config {
	c.Group = cmp.Or(c.Group, c.Queue)
	c.Concurrency = cmp.Or(c.Concurrency, 2)
	c.Batch.Messages = cmp.Or(c.Batch.Messages, 500)
	c.Batch.Bytes = cmp.Or(c.Batch.Bytes, 4<<20)
	c.MaxBufferedBytes = cmp.Or(c.MaxBufferedBytes, 64<<20)
	c.HandlerTimeout = cmp.Or(c.HandlerTimeout, 30*time.Second)
	c.Lease = cmp.Or(c.Lease, max(delayq.DefaultLeaseFor, c.HandlerTimeout+15*time.Second))
	c.LockTimeout = cmp.Or(c.LockTimeout, 5*time.Second)
	c.SessionTimeout = cmp.Or(c.SessionTimeout, 10*time.Second)
	c.RebalanceTimeout = cmp.Or(c.RebalanceTimeout, time.Minute)
	c.RevokeBudget = cmp.Or(c.RevokeBudget, 5*time.Second)
	c.StopBudget = cmp.Or(c.StopBudget, 20*time.Second)
	c.CommitInterval = cmp.Or(c.CommitInterval, time.Second)
	c.Retention = cmp.Or(c.Retention, 8*24*time.Hour)
	c.ResultLifetime = cmp.Or(c.ResultLifetime, min(8*24*time.Hour, c.Retention))
	if c.Claims == ClaimNone && len(c.Rules.ID) == 0 {
		c.Rules.OnMissing = dedup.MissingOffset // there is no id to miss
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports everything in the config that cannot work, each as a
// *ConfigError. New calls it.
func (c Config) Validate() error {
	filled := c.withDefaults()
	return errors.Join(slices.Concat(filled.checkNames(), filled.checkHandlers(), filled.checkReply(), filled.checkTimes())...)
}

func (c *Config) wrong(field, format string, args ...any) error {
	return &ConfigError{Queue: c.Queue, Field: field, Problem: fmt.Sprintf(format, args...)}
}

func (c *Config) checkNames() (errs []error) {
	if !queueName.MatchString(c.Queue) {
		errs = append(errs, c.wrong("Queue", "a queue needs a name of letters, digits and ._:/- with at most 200 characters"))
	}
	if len(c.Topics) == 0 {
		errs = append(errs, c.wrong("Topics", "no topic is named"))
	}
	for i, topic := range c.Topics {
		if topic == "" || slices.Contains(c.Topics[:i], topic) {
			errs = append(errs, c.wrong("Topics", "topic %q is empty or named twice", topic))
		}
	}
	if c.DeadLetterTopic != "" && slices.Contains(c.Topics, c.DeadLetterTopic) {
		errs = append(errs, c.wrong("DeadLetterTopic", "%q is also read: a dead letter would come back for ever; name another topic", c.DeadLetterTopic))
	}
	if len(c.Rules.ID) == 0 && c.Rules.OnMissing != dedup.MissingOffset {
		errs = append(errs, c.wrong("Rules.ID", "no id rule: say where a message's id is found, or set Claims to ClaimNone for a handler that is idempotent by itself"))
	} else if err := c.Rules.Validate(); err != nil {
		errs = append(errs, c.wrong("Rules", "%v", err))
	}
	if len(c.Topics) > 1 && len(c.Rules.Operation) == 0 && c.Claims == ClaimIDs {
		errs = append(errs, c.wrong("Rules.Operation", "the queue reads %d topics: say whether one id in two of them is one message (dedup.Const) or two (dedup.Topic)", len(c.Topics)))
	}
	if err := c.Retry.Validate(); err != nil {
		errs = append(errs, c.wrong("Retry", "%v", err))
	}
	return errs
}

func (c *Config) checkHandlers() (errs []error) {
	if c.Handler.kind == kindNone && len(c.Routes) == 0 {
		errs = append(errs, c.wrong("Handler", "there is neither a handler nor a route"))
	}
	for i := range c.Routes {
		r := &c.Routes[i]
		if r.Handler.kind == kindNone {
			errs = append(errs, c.wrong("Routes", "route %q has no handler", r.Name))
		}
		sameName := func(other Route) bool { return other.Name == r.Name }
		if r.Name == "" || slices.ContainsFunc(c.Routes[:i], sameName) {
			errs = append(errs, c.wrong("Routes", "route %d needs a name of its own", i))
		}
		if r.Topic != "" && !slices.Contains(c.Topics, r.Topic) {
			errs = append(errs, c.wrong("Routes", "route %q takes topic %q, which the queue does not read", r.Name, r.Topic))
		}
	}
	return errs
}

func (c *Config) checkTimes() (errs []error) {
	positive := []struct {
		field string
		value int64
	}{
		{"Concurrency", int64(c.Concurrency)},
		{"Batch.Messages", int64(c.Batch.Messages)},
		{"Batch.Bytes", int64(c.Batch.Bytes)},
		{"MaxBufferedBytes", int64(c.MaxBufferedBytes)},
		{"HandlerTimeout", int64(c.HandlerTimeout)},
		{"Lease", int64(c.Lease)},
		{"LockTimeout", int64(c.LockTimeout / time.Millisecond)},
		{"SessionTimeout", int64(c.SessionTimeout)},
		{"RebalanceTimeout", int64(c.RebalanceTimeout)},
		{"RevokeBudget", int64(c.RevokeBudget)},
		{"StopBudget", int64(c.StopBudget)},
		{"CommitInterval", int64(c.CommitInterval)},
		{"Retention", int64(c.Retention)},
		{"ResultLifetime", int64(c.ResultLifetime)},
	}
	for _, p := range positive {
		if p.value <= 0 {
			errs = append(errs, c.wrong(p.field, "must be greater than zero"))
		}
	}
	if c.CommitInterval > 0 && c.CommitInterval < shortestCommitInterval {
		errs = append(errs, c.wrong("CommitInterval", "%s is shorter than %s", c.CommitInterval, shortestCommitInterval))
	}
	if c.Batch.Wait < 0 || c.Batch.Wait > 10*time.Second {
		errs = append(errs, c.wrong("Batch.Wait", "%s is not between 0 and 10s", c.Batch.Wait))
	}
	if c.Batch.Messages > 10_000 {
		errs = append(errs, c.wrong("Batch.Messages", "%d is more than 10000", c.Batch.Messages))
	}
	if c.HandlerTimeout > c.RebalanceTimeout-c.RevokeBudget {
		errs = append(errs, c.wrong("HandlerTimeout", "%s does not fit into RebalanceTimeout %s less RevokeBudget %s: a handler could still run when another member has its partition",
			c.HandlerTimeout, c.RebalanceTimeout, c.RevokeBudget))
	}
	if c.Lease > 0 && c.Lease <= c.HandlerTimeout {
		errs = append(errs, c.wrong("Lease", "%s is not longer than HandlerTimeout %s: one slow renewal, and another worker would have the item that a handler is working on", c.Lease, c.HandlerTimeout))
	}
	if c.ResultLifetime > c.Retention {
		errs = append(errs, c.wrong("ResultLifetime", "%s is longer than Retention %s: a result cannot outlive its claim", c.ResultLifetime, c.Retention))
	}
	return append(errs, c.checkRetention()...)
}

// checkRetention does the arithmetic of the promise: whatever may bring an id
// again must do so while the id is remembered (CASES C10).
func (c *Config) checkRetention() (errs []error) {
	if c.Claims == ClaimNone {
		return nil
	}
	retries := c.Retry.Horizon()
	for _, need := range []struct {
		field string
		value time.Duration
	}{
		{"Retry", retries},
		{"ResendHorizon", c.ResendHorizon},
		{"ReplayWindow", c.ReplayWindow},
	} {
		if need.value > c.Retention {
			errs = append(errs, c.wrong(need.field, "ids are remembered for %s and it reaches %s: lengthen Retention or shorten it", c.Retention, need.value))
		}
	}
	if sum := retries + c.ResendHorizon + c.ReplayWindow; len(errs) == 0 && sum > c.Retention {
		errs = append(errs, c.wrong("Retention", "ids are remembered for %s, and retries %s + resend horizon %s + replay window %s = %s do not fit: lengthen Retention",
			c.Retention, retries, c.ResendHorizon, c.ReplayWindow, sum))
	}
	return errs
}
