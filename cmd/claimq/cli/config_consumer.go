package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
)

// A statement is an SQL handler of a queue with its place in the configuration, so
// that a database can be asked about it.
type statement struct {
	path []string
	consumer.SQLStatement
}

// consumerConfig returns what a queue's consumer is made of, checked as far as
// that can be done without Kafka and a database, and the statements of its
// handlers. Logger and Metrics are left out.
func (c *Config) consumerConfig(name string) (consumer.Config, []statement, error) {
	queue, err := c.queue(name)
	if err != nil {
		return consumer.Config{}, nil, err
	}
	builder := queueBuilder{name: name, queue: &queue}
	config := builder.build()
	config.Schema = c.schema()
	if len(builder.errs) == 0 {
		builder.validate(&config)
	}
	if err := errors.Join(builder.errs...); err != nil {
		return consumer.Config{}, nil, configError(placed(c, err))
	}
	return config, builder.statements, nil
}

// queueBuilder turns a queue's section into a consumer.Config and collects what is wrong.
type queueBuilder struct {
	name       string
	queue      *QueueConfig
	statements []statement
	errs       []error
}

func (b *queueBuilder) path(fields ...string) []string {
	return append([]string{"queues", b.name}, fields...)
}

func (b *queueBuilder) note(err error) {
	if err != nil {
		b.errs = append(b.errs, err)
	}
}

func (b *queueBuilder) build() consumer.Config {
	q := b.queue
	config := consumer.Config{
		Queue:            b.name,
		Topics:           q.Topics,
		Group:            q.Group,
		Owner:            consumer.Owner{Team: q.Owner.Team, Contact: q.Owner.Contact},
		HideIDs:          q.HideIDs,
		DeadLetterTopic:  q.DeadLetterTopic,
		ReadUncommitted:  q.ReadUncommitted,
		Concurrency:      q.Concurrency,
		Batch:            consumer.BatchLimits{Messages: q.Batch.Messages, Bytes: int(q.Batch.Bytes), Wait: time.Duration(q.Batch.Wait)},
		MaxBufferedBytes: int(q.MaxBuffered),
		HandlerTimeout:   time.Duration(q.HandlerTimeout),
		Lease:            time.Duration(q.Lease),
		LockTimeout:      time.Duration(q.LockTimeout),
		SessionTimeout:   time.Duration(q.SessionTimeout),
		RebalanceTimeout: time.Duration(q.RebalanceTimeout),
		RevokeBudget:     time.Duration(q.RevokeBudget),
		StopBudget:       time.Duration(q.StopBudget),
		CommitInterval:   time.Duration(q.CommitInterval),
		Retention:        time.Duration(q.Retention),
		ResultLifetime:   time.Duration(q.ResultLifetime),
		ResendHorizon:    time.Duration(q.ResendHorizon),
		ReplayWindow:     time.Duration(q.ReplayWindow),
		Retry:            q.Retry.policy(),
	}
	var err error
	config.Rules, err = q.rules(b.path())
	b.note(err)
	config.OrderBy, err = parseSources(b.path("order_by"), q.OrderBy)
	b.note(err)
	config.Start, err = parseStart(b.path("start"), q.Start)
	b.note(err)
	config.Claims = word(b, "claims", q.Claims, consumer.ClaimIDs, consumer.ClaimNone)
	config.Repeats = word(b, "repeats", q.Repeats, consumer.RepeatsCount, consumer.RepeatsLog)
	config.OnDuplicate = word(b, "on_duplicate", q.OnDuplicate, consumer.Drop, consumer.SendReply)
	config.Reply = consumer.Reply{Topic: q.Reply.Topic, Key: b.source(b.path("reply", "key"), q.Reply.Key)}
	config.Order = word(b, "order", q.Order, consumer.OrderKey, consumer.OrderPartition, consumer.OrderNone)
	config.OnDead = word(b, "on_dead", q.OnDead, consumer.Continue, consumer.Block)
	config.OutOfRange = word(b, "out_of_range", q.OutOfRange, consumer.Halt, consumer.Earliest)
	if config.Claims == consumer.ClaimNone && len(config.Rules.ID) == 0 {
		config.Rules.OnMissing = dedup.MissingOffset // there is no id to miss
	}
	if q.Handler != nil {
		config.Handler = b.handler(b.path("handler"), q.Handler)
	}
	for i, route := range q.Routes {
		at := b.path("routes", "["+strconv.Itoa(i)+"]")
		made := consumer.Route{Name: route.Name, Topic: route.Topic, Header: route.Header, Value: route.Value}
		if route.Handler == nil {
			b.note(fieldErrorf(append(at, "handler"), "is missing: a route needs what handles its messages"))
		} else {
			made.Handler = b.handler(append(at, "handler"), route.Handler)
		}
		config.Routes = append(config.Routes, made)
	}
	return config
}

func (b *queueBuilder) handler(path []string, h *HandlerConfig) consumer.Handler {
	text := h.SQL
	if h.SQLFile != "" {
		if h.SQL != "" {
			b.note(fieldErrorf(append(path, "sql_file"), "sql is set too: leave one of the two out"))
			return consumer.Handler{}
		}
		content, err := os.ReadFile(h.SQLFile)
		if err != nil {
			b.note(fieldErrorf(append(path, "sql_file"), "%v", err))
			return consumer.Handler{}
		}
		text = string(content)
	}
	if strings.TrimSpace(text) == "" {
		b.note(fieldErrorf(append(path, "sql"), "is missing: a handler is a statement"))
		return consumer.Handler{}
	}
	sql := consumer.SQLStatement{Statement: text, Each: h.Each, Effects: b.effects(append(path, "effects"), h.Effects)}
	handler, err := consumer.SQL(sql)
	if err != nil {
		b.note(fieldErrorf(append(path, "sql"), "%v", err))
	}
	b.statements = append(b.statements, statement{path: path, SQLStatement: sql})
	return handler
}

func (b *queueBuilder) effects(path []string, effects []EffectConfig) []consumer.SQLEffect {
	var made []consumer.SQLEffect
	for i, e := range effects {
		at := append(append([]string(nil), path...), "["+strconv.Itoa(i)+"]")
		effect := consumer.SQLEffect{Name: e.Name, Topic: e.Topic, CopyHeaders: e.CopyHeaders}
		effect.Key = b.source(append(at, "key"), e.Key)
		effect.Value = b.source(append(at, "value"), e.Value)
		for field, value := range map[string]string{"name": e.Name, "topic": e.Topic} {
			if value == "" {
				b.note(fieldErrorf(append(append([]string(nil), at...), field), "is missing"))
			}
		}
		made = append(made, effect)
	}
	return made
}

// source parses one source; none is nil.
func (b *queueBuilder) source(path []string, text string) dedup.Source {
	if text == "" {
		return nil
	}
	source, err := dedup.ParseSource(text)
	if err != nil {
		b.note(fieldErrorf(append([]string(nil), path...), "%v", err))
		return nil
	}
	return source
}

// validate asks the consumer what is wrong. What users of a file meet first is
// said in the file's words before.
func (b *queueBuilder) validate(config *consumer.Config) {
	told := map[string]bool{}
	tell := func(field, format string, args ...any) {
		told[field] = true
		b.note(fieldErrorf(b.path(field), format, args...))
	}
	claiming := config.Claims == consumer.ClaimIDs
	if len(config.Topics) == 0 {
		tell("topics", "is missing: name the Kafka topics to read")
	}
	if claiming && len(config.Rules.ID) == 0 && b.queue.OnMissing != "offset" {
		tell("id", "is missing: say where a message's id is found, as header:idempotency-key, or effect for records that claimq's outbox has published; or set claims: none for a handler that is idempotent by itself")
	}
	if claiming && len(config.Topics) > 1 && len(config.Rules.Operation) == 0 {
		tell("operation", "is missing, and %d topics are read: topic keeps the ids of each apart; const:%s makes one id in two topics one message", len(config.Topics), b.name)
	}
	if b.queue.Handler == nil && len(b.queue.Routes) == 0 {
		tell("handler", "is missing, and there are no routes: say what to do with a message")
	}
	b.noteAll(config.Validate(), told)
}

// noteAll takes the consumer's errors apart and gives each its place.
func (b *queueBuilder) noteAll(err error, told map[string]bool) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range joined.Unwrap() {
			b.noteAll(part, told)
		}
		return
	}
	wrong, ok := errors.AsType[*consumer.ConfigError](err)
	if !ok {
		b.note(err)
		return
	}
	if path := fileField(wrong.Field); !told[path[0]] && !(wrong.Field == "Rules" && len(told) > 0) {
		b.note(fieldErrorf(b.path(path...), "%s", wrong.Problem))
	}
}

// fileField returns the path, within a queue's section, of a field of
// consumer.Config.
func fileField(field string) []string {
	switch field {
	case "Queue":
		return []string{"(name)"}
	case "Rules":
		return []string{"id"}
	case "MaxBufferedBytes":
		return []string{"max_buffered"}
	case "HideIDs":
		return []string{"hide_ids"}
	}
	var path []string
	for part := range strings.SplitSeq(strings.TrimPrefix(field, "Rules."), ".") {
		path = append(path, snake(part))
	}
	return path
}

// snake writes a Go name as the file's are: OnDead, on_dead.
func snake(name string) string {
	var out strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(rune(name[i-1])) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// policy returns the retry policy; what is not set has delayq's default.
func (r *RetryConfig) policy() delayq.Policy {
	policy := delayq.Policy{
		MaxAttempts:  r.MaxAttempts,
		InitialDelay: time.Duration(r.InitialDelay),
		Factor:       r.DelayFactor,
		MaxDelay:     time.Duration(r.MaxDelay),
		Deadline:     time.Duration(r.Deadline),
	}
	if r.Jitter != nil {
		policy.Jitter, policy.NoJitter = *r.Jitter, *r.Jitter == 0
	}
	return policy
}

// word returns what a word of the file means; the first meaning is the default.
func word[T fmt.Stringer](b *queueBuilder, field, text string, meanings ...T) T {
	words := make([]string, len(meanings))
	for i, meaning := range meanings {
		words[i] = meaning.String()
	}
	text = cmp.Or(text, words[0])
	b.note(oneOf(b.path(field), text, words...))
	return meanings[max(slices.Index(words, text), 0)]
}

func parseStart(path []string, text string) (consumer.Start, error) {
	switch text {
	case "", "committed":
		return consumer.StartCommitted(), nil
	case "earliest":
		return consumer.StartEarliest(), nil
	case "latest":
		return consumer.StartLatest(), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return consumer.Start{}, fieldErrorf(path, "%q is none of committed, earliest, latest, and no time as 2026-01-31T00:00:00Z", text)
	}
	return consumer.StartAt(at), nil
}
