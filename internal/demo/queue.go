package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/internal/pgschema"
)

// names are what a run calls its things. On servers that it was given, all of
// them have a random part.
type names struct {
	Queue       string `json:"queue"`
	Orders      string `json:"orders"`
	Effects     string `json:"effects"`
	DeadLetters string `json:"dead_letters"`
	Schema      string `json:"schema"`
}

func newNames(suffix string) names {
	if suffix == "" {
		return names{Queue: "orders", Orders: "orders", Effects: "orders.confirmed", DeadLetters: "orders.dead", Schema: pgschema.Default}
	}
	base := "claimq-demo-" + suffix
	return names{
		Queue: base, Orders: base + ".orders", Effects: base + ".confirmed", DeadLetters: base + ".dead",
		Schema: "claimq_demo_" + suffix,
	}
}

func (n names) topics() []string { return []string{n.Orders, n.Effects, n.DeadLetters} }

// The times of the demo's queue. The session is the shortest that brokers allow by
// default: what the partitions of the killed consumer wait for.
const (
	sessionTimeout = 6 * time.Second
	retryDelay     = time.Second
)

// sqlCreateOrders makes the business table. It has no unique constraint on
// purpose: an order that took effect twice must show as two rows, and not be
// caught by a constraint of the business's own.
const sqlCreateOrders = `
create table claimq.demo_orders (
    n        bigint generated always as identity primary key,
    order_id text not null,
    customer text not null,
    cents    bigint not null,
    payload  bytea not null,    -- the record's value, byte for byte
    attempt  int not null,      -- at which it worked
    waited   boolean not null,  -- it came by the delay queue
    worker   text not null
)`

// sqlInsertOrder is the business write. It commits with the order's claim, or not
// at all.
const sqlInsertOrder = `
insert into claimq.demo_orders (order_id, customer, cents, payload, attempt, waited, worker)
values ($1, $2, $3, $4, $5, $6, $7)`

// queueConfig is the queue that both consumers run.
func queueConfig(n names, worker string, logger *slog.Logger, hold *holder) consumer.Config {
	h := &handler{sql: pgschema.Schema(n.Schema).SQL(sqlInsertOrder), effects: n.Effects, worker: worker, hold: hold}
	return consumer.Config{
		Queue: n.Queue, Topics: []string{n.Orders}, Schema: n.Schema,
		Owner:           consumer.Owner{Team: "claimq demo", Contact: "you"},
		Rules:           dedup.Rules{ID: []dedup.Source{dedup.Header(headerID)}},
		Handler:         consumer.Pipelined(h.handle),
		Retry:           delayq.Policy{MaxAttempts: maxAttempts, InitialDelay: retryDelay, Factor: 1},
		DeadLetterTopic: n.DeadLetters,
		Start:           consumer.StartEarliest(),
		SessionTimeout:  sessionTimeout,
		// Short, so that what the killed consumer had on loan comes back while one watches.
		HandlerTimeout: 6 * time.Second,
		Lease:          10 * time.Second,
		StopBudget:     2 * time.Second,
		RevokeBudget:   2 * time.Second,
		Logger:         logger,
	}
}

// A handler is what a user of claimq writes.
type handler struct {
	sql     string
	effects string
	worker  string
	hold    *holder
}

// The two ways in which an order itself fails.
var (
	errWarehouse = errors.New("the warehouse does not answer")
	errClosed    = errors.New("the customer's account is closed")
)

func (h *handler) handle(_ context.Context, b *pgx.Batch, m *consumer.Message) error {
	o, err := decode(m.Record.Value)
	switch {
	case err != nil:
		return consumer.Permanent(err)
	case o.Closed:
		return consumer.Permanent(fmt.Errorf("%s: %w", o.Customer, errClosed))
	case m.Attempt <= o.FailFirst:
		return fmt.Errorf("attempt %s: %w", strconv.Itoa(m.Attempt), errWarehouse)
	}
	waited := !m.FirstSeen.IsZero()
	query := b.Queue(h.sql, o.ID, o.Customer, o.Cents, m.Record.Value, m.Attempt, waited, h.worker)
	if h.hold != nil && !waited {
		h.hold.watch(b, query)
	}
	return m.Emit(o.effect(h.effects))
}

// A holder stops its consumer in the middle of a batch: when the orders of the
// batch are written and nothing is committed, it tells how many they are and never
// lets go. It is for a process that is about to be killed.
type holder struct {
	holding func(n int)     // called once
	forever <-chan struct{} // never closed in a process that is killed

	left    atomic.Int64 // messages to handle before, and one for being armed; 0: not armed
	once    sync.Once
	mu      sync.Mutex
	batches map[*pgx.Batch]*batchCount
}

type batchCount struct{ queued, written int }

func newHolder(holding func(int), forever <-chan struct{}) *holder {
	return &holder{holding: holding, forever: forever, batches: map[*pgx.Batch]*batchCount{}}
}

// arm makes it stop its consumer after so many messages more.
func (h *holder) arm(after int) { h.left.Store(int64(max(after, 1)) + 1) }

// watch counts a statement of a batch when it is queued and when it has run. The
// callbacks of a batch run one after the other, behind all of its watches.
func (h *holder) watch(b *pgx.Batch, query *pgx.QueuedQuery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	count := h.batches[b]
	if count == nil {
		count = &batchCount{}
		h.batches[b] = count
	}
	count.queued++
	query.Exec(func(pgconn.CommandTag) error {
		h.written(count)
		return nil
	})
}

func (h *holder) written(count *batchCount) {
	if count.written++; count.written == count.queued {
		h.forget(count)
	}
	if !h.due() || count.written < count.queued || count.queued < 2 {
		return
	}
	h.once.Do(func() { h.holding(count.written) })
	<-h.forever
}

// due counts a message and reports whether enough were handled since it was armed.
func (h *holder) due() bool {
	left := h.left.Load()
	for left > 1 && !h.left.CompareAndSwap(left, left-1) {
		left = h.left.Load()
	}
	return left == 1
}

// forget keeps the counts of batches that have run from piling up.
func (h *holder) forget(done *batchCount) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.batches, func(_ *pgx.Batch, count *batchCount) bool { return count == done })
}
