package cli

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
)

// Fields of consumer.Config that no file sets, each with its reason.
var notInAFile = []string{
	"Queue",            // the section's name
	"Rules",            // id, on_missing, tenant, operation, fingerprint
	"AcceptRuleChange", // run --accept: a file would go on accepting
	"Middleware",       // Go only
	"Schema",           // database.schema
	"Logger", "Metrics", "Relay", "Committed",
}

func TestEveryFieldOfTheConsumerHasOneInTheFile(t *testing.T) {
	t.Parallel()
	fields := fieldsOf(reflect.TypeFor[QueueConfig]())
	for field := range reflect.TypeFor[consumer.Config]().Fields() {
		if slices.Contains(notInAFile, field.Name) {
			continue
		}
		name := fileField(field.Name)[0]
		if fields[name] == nil {
			t.Errorf("consumer.Config.%s has no field %s in QueueConfig", field.Name, name)
		}
		delete(fields, name)
	}
	for _, name := range []string{"id", "on_missing", "tenant", "operation", "fingerprint"} {
		delete(fields, name)
	}
	for name := range fields {
		t.Errorf("QueueConfig has %s and consumer.Config nothing for it", name)
	}
}

// Every field of a file that is set must arrive: a field that is read and then
// forgotten would change nothing, in silence.
func TestEveryFieldOfTheFileReachesTheConsumer(t *testing.T) {
	t.Parallel()
	config := mustLoad(t, `
database: {schema: dedup}
queues:
  q:
    topics: [a, b]
    group: g
    owner: {team: t, contact: c}
    id: header:id
    on_missing: offset
    tenant: header:tenant
    operation: topic
    fingerprint: fields(a)
    claims: id
    repeats: log
    on_duplicate: reply
    reply: {topic: answers, key: key}
    hide_ids: true
    handler: {sql: 'select unnest(@ids)'}
    routes: [{name: r, topic: a, header: h, value: v, handler: {sql: 'select @id', each: true}}]
    order: partition
    order_by: [key]
    on_dead: block
    retry: {max_attempts: 4, initial_delay: 1s, delay_factor: 3, max_delay: 1m, jitter: 0.5, deadline: 1h}
    dead_letter_topic: d
    start: earliest
    out_of_range: earliest
    read_uncommitted: true
    concurrency: 3
    batch: {messages: 7, bytes: 8KiB, wait: 9ms}
    max_buffered: 10MiB
    handler_timeout: 11s
    lease: 50s
    lock_timeout: 12s
    session_timeout: 13s
    rebalance_timeout: 2m
    revoke_budget: 14s
    stop_budget: 15s
    commit_interval: 16s
    retention: 17d
    result_lifetime: 16d
    resend_horizon: 1d
    replay_window: 2d
`)
	got, statements, err := config.consumerConfig("q")
	if err != nil {
		t.Fatal(err)
	}
	want := consumer.Config{
		Queue: "q", Topics: []string{"a", "b"}, Group: "g", Owner: consumer.Owner{Team: "t", Contact: "c"},
		Repeats: consumer.RepeatsLog, OnDuplicate: consumer.SendReply, Reply: consumer.Reply{Topic: "answers", Key: dedup.RecordKey()}, HideIDs: true, Order: consumer.OrderPartition, OnDead: consumer.Block,
		Retry:           delayq.Policy{MaxAttempts: 4, InitialDelay: time.Second, Factor: 3, MaxDelay: time.Minute, Jitter: 0.5, Deadline: time.Hour},
		DeadLetterTopic: "d", Start: consumer.StartEarliest(), OutOfRange: consumer.Earliest, ReadUncommitted: true, Concurrency: 3,
		Batch:            consumer.BatchLimits{Messages: 7, Bytes: 8192, Wait: 9 * time.Millisecond},
		MaxBufferedBytes: 10 << 20, HandlerTimeout: 11 * time.Second, Lease: 50 * time.Second, LockTimeout: 12 * time.Second, SessionTimeout: 13 * time.Second,
		RebalanceTimeout: 2 * time.Minute, RevokeBudget: 14 * time.Second, StopBudget: 15 * time.Second, CommitInterval: 16 * time.Second,
		Retention: 17 * 24 * time.Hour, ResultLifetime: 16 * 24 * time.Hour, ResendHorizon: 24 * time.Hour, ReplayWindow: 48 * time.Hour,
		Schema: "dedup",
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(consumer.Config{}, "Rules", "OrderBy", "Handler", "Routes"),
		cmp.Comparer(func(a, b consumer.Start) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rule := got.Rules.String(); rule != "id(header:id) missing(offset) tenant(header:tenant) operation(topic) fingerprint(fields(a))" {
		t.Errorf("rules = %s", rule)
	}
	if len(got.OrderBy) != 1 || got.OrderBy[0].String() != "key" {
		t.Errorf("order_by = %v", got.OrderBy)
	}
	if len(got.Routes) != 1 || got.Routes[0].Name != "r" || got.Routes[0].Topic != "a" || got.Routes[0].Header != "h" || got.Routes[0].Value != "v" {
		t.Errorf("routes = %+v", got.Routes)
	}
	if len(statements) != 2 || statements[0].Each || !statements[1].Each || dotted(statements[1].path) != "queues.q.routes[0].handler" {
		t.Errorf("statements = %+v", statements)
	}
	// Whatever is set above differs from its zero value, so that nothing is compared with nothing.
	for field := range reflect.TypeFor[QueueConfig]().Fields() {
		if reflect.ValueOf(config.Queues["q"]).FieldByIndex(field.Index).IsZero() {
			t.Errorf("the test sets no %s", field.Name)
		}
	}
}

func TestNoJitterIsToldFromNone(t *testing.T) {
	t.Parallel()
	zero := 0.0
	if p := (&RetryConfig{Jitter: &zero}).policy(); !p.NoJitter {
		t.Error("jitter: 0 leaves the default")
	}
	if p := (&RetryConfig{}).policy(); p.NoJitter || p.Jitter != 0 {
		t.Error("an absent jitter turns it off")
	}
}

func TestAStatementCanStandInAFile(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "handler.sql", "-- the handler\nselect unnest(@ids)\n")
	config := mustLoad(t, "queues: {q: {topics: [t], id: key, handler: {sql_file: '"+file+"'}}}\n")
	_, statements, err := config.consumerConfig("q")
	if err != nil || len(statements) != 1 || !strings.Contains(statements[0].Statement, "-- the handler") {
		t.Errorf("%+v, %v", statements, err)
	}
}

func TestAnUnknownQueueIsAWrongCommandLine(t *testing.T) {
	t.Parallel()
	config := mustLoad(t, "queues: {orders: {topics: [t]}}\n")
	_, _, err := config.consumerConfig("order")
	if exitCode(err) != ExitUsage || !strings.Contains(err.Error(), "did you mean orders?") {
		t.Errorf("%d: %v", exitCode(err), err)
	}
	_, err = (&Config{}).rules("order")
	if exitCode(err) != ExitUsage {
		t.Errorf("%v", err)
	}
}

// The retention that a contract tells must be the one that the consumer works with.
func TestTheDefaultRetentionIsTheConsumers(t *testing.T) {
	t.Parallel()
	config, _, err := mustLoad(t, "queues: {q: {topics: [t], id: key, retry: {max_attempts: 1}, handler: {sql: 'select unnest(@ids)'}}}").consumerConfig("q")
	if err != nil {
		t.Fatal(err)
	}
	config.ResendHorizon = defaultRetention
	if err := config.Validate(); err != nil {
		t.Errorf("the consumer remembers less: %v", err)
	}
	config.ResendHorizon++
	if config.Validate() == nil {
		t.Error("the consumer remembers more")
	}
}
