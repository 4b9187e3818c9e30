package position_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/position"
	"github.com/claimq/claimq/internal/sqlstate"
)

var (
	ordersID  = uuid.MustParse("00000000-0000-0000-0000-000000000001")
	refundsID = uuid.MustParse("00000000-0000-0000-0000-000000000002")
)

// A fixture is a schema with queue 1, which has begun topics 1 (orders) and 2
// (refunds), and does what a worker does.
type fixture struct {
	*pgtest.DB
	t      *testing.T
	schema pgschema.Schema
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db := pgtest.New(t)
	f := &fixture{DB: db, t: t, schema: pgschema.Schema(db.Schema)}
	f.exec(`insert into claimq.queues (name, group_name, rule) values ('q', 'q', 'r')`)
	f.exec(`insert into claimq.topics (topic_id, name) values ($1, 'orders'), ($2, 'refunds')`, ordersID, refundsID)
	f.exec(`insert into claimq.queue_topics (queue, topic) values (1, 1), (1, 2)`)
	return f
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.Pool.Exec(f.t.Context(), f.schema.SQL(sql), args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// take makes a worker the owner of a partition, as the consumer does.
func (f *fixture) take(instance string, topic, partition int32) (token uuid.UUID, epoch int64) {
	f.t.Helper()
	token = uuid.New()
	err := f.Pool.QueryRow(f.t.Context(), f.schema.SQL(`select epoch from claimq.take_ownership(1, $1, $2, array[$3::int], array[$4::int])`),
		instance, token, topic, partition).Scan(&epoch)
	if err != nil {
		f.t.Fatalf("take ownership: %v", err)
	}
	return token, epoch
}

// handle commits a batch that moves a partition, behind the fence.
func (f *fixture) handle(token uuid.UUID, topic, partition int32, epoch, next int64) error {
	f.t.Helper()
	return pgx.BeginFunc(f.t.Context(), f.Pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(f.schema.SQL(`insert into claimq.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs)
			values (claimq.position_slot(now()), gen_random_uuid(), 1, array[$1::int], array[$2::int], array[$3::bigint], array[$4::bigint], '{7}')`), topic, partition, epoch, next)
		b.Queue(`select pg_advisory_xact_lock_shared(hashtext($1), 1)`, f.Schema)
		b.Queue(f.schema.SQL(`select claimq.assert_owner(1, array[$1::int], array[$2::int], array[$3::uuid])`), topic, partition, token)
		return tx.SendBatch(f.t.Context(), b).Close()
	})
}

func (f *fixture) partitions() []position.Partition {
	f.t.Helper()
	list, err := position.Partitions(f.t.Context(), f.Pool, f.schema, 1)
	if err != nil {
		f.t.Fatalf("Partitions: %v", err)
	}
	return list
}

func (f *fixture) next(topic, partition int32) int64 {
	f.t.Helper()
	for _, p := range f.partitions() {
		if p.Topic == topic && p.Partition == partition && p.Next != nil {
			return *p.Next
		}
	}
	f.t.Fatalf("partition %d/%d has no position", topic, partition)
	return 0
}

func (f *fixture) set(moves ...position.Move) []position.Moved {
	f.t.Helper()
	moved, err := position.Set(f.t.Context(), f.Pool, f.schema, position.Order{Queue: 1, Moves: moves, Who: "ada", Why: "test"})
	if err != nil {
		f.t.Fatalf("Set: %v", err)
	}
	return moved
}

func ordersTo(partition int32, next int64) position.Move {
	return position.Move{TopicID: ordersID, TopicName: "orders", Partition: partition, Next: next, LeaderEpoch: -1}
}

func TestPartitionsTellsPositionAndOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.take("worker-0", 1, 0)
	token, epoch := f.take("worker-1", 1, 0)
	if err := f.handle(token, 1, 0, epoch, 42); err != nil {
		t.Fatal(err)
	}
	f.take("worker-2", 2, 5)
	list := f.partitions()
	for i := range list {
		if list[i].OwnedSince == nil || time.Since(*list[i].OwnedSince).Abs() > time.Minute {
			t.Errorf("%s[%d] is owned since %v", list[i].TopicName, list[i].Partition, list[i].OwnedSince)
		}
		list[i].OwnedSince = nil
		if list[i].Next != nil && list[i].WrittenAt == nil {
			t.Errorf("%s[%d] has a position without a time", list[i].TopicName, list[i].Partition)
		}
		list[i].WrittenAt = nil
	}
	ptr := func(n int64) *int64 { return &n }
	want := []position.Partition{
		{Topic: 1, TopicID: ordersID, TopicName: "orders", Partition: 0, Next: ptr(42), Epoch: ptr(2), OwnerEpoch: ptr(2), Owner: "worker-1"},
		{Topic: 2, TopicID: refundsID, TopicName: "refunds", Partition: 5, OwnerEpoch: ptr(1), Owner: "worker-2"},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("Partitions (-want +got):\n%s", diff)
	}
}

func TestSetFencesTheRunningWorker(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token, epoch := f.take("worker", 1, 0)
	if err := f.handle(token, 1, 0, epoch, 100); err != nil {
		t.Fatal(err)
	}
	moved := f.set(ordersTo(0, 10))
	if from := moved[0].From; from == nil || *from != 100 || moved[0].Epoch <= epoch {
		t.Errorf("Set = %+v, want it to come from 100 with an epoch above %d", moved[0], epoch)
	}
	if err := f.handle(token, 1, 0, epoch, 101); sqlstate.Code(err) != sqlstate.Fenced {
		t.Errorf("the worker's next batch: %v, want it to be fenced", err)
	}
	if got := f.next(1, 0); got != 10 {
		t.Fatalf("the position is %d, want 10", got)
	}
	token, epoch = f.take("worker", 1, 0)
	if err := f.handle(token, 1, 0, epoch, 11); err != nil {
		t.Fatalf("the worker's first batch after taking over again: %v", err)
	}
	if got := f.next(1, 0); got != 11 {
		t.Errorf("the position is %d, want 11", got)
	}
}

func TestSetMovesForwardAndBackAnyNumberOfTimes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, next := range []int64{500, 20, 20, 0, 499} {
		f.set(ordersTo(0, next))
		if got := f.next(1, 0); got != next {
			t.Errorf("the position is %d, want %d", got, next)
		}
	}
}

func TestSetLeavesOtherPartitionsAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token, epoch := f.take("worker", 1, 1)
	if err := f.handle(token, 1, 1, epoch, 7); err != nil {
		t.Fatal(err)
	}
	f.set(ordersTo(0, 3), position.Move{TopicID: refundsID, TopicName: "refunds", Partition: 1, Next: 9, LeaderEpoch: -1})
	if err := f.handle(token, 1, 1, epoch, 8); err != nil {
		t.Errorf("the owner of a partition that was not moved: %v", err)
	}
	for _, want := range []struct {
		topic, partition int32
		next             int64
	}{{1, 0, 3}, {1, 1, 8}, {2, 1, 9}} {
		if got := f.next(want.topic, want.partition); got != want.next {
			t.Errorf("the position of %d/%d is %d, want %d", want.topic, want.partition, got, want.next)
		}
	}
}

// A failover can lose the newest epochs of owners and keep positions written under
// them, or the other way round.
func TestSetMovesBackWhenTheOwnersEpochLiesBelowThePositions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token, epoch := f.take("worker", 1, 0)
	if err := f.handle(token, 1, 0, epoch+40, 100); err != nil {
		t.Fatal(err)
	}
	f.set(ordersTo(0, 10))
	if got := f.next(1, 0); got != 10 {
		t.Fatalf("the position is %d, want 10", got)
	}
	token, epoch = f.take("worker", 1, 0)
	if err := f.handle(token, 1, 0, epoch, 11); err != nil {
		t.Fatal(err)
	}
	if got := f.next(1, 0); got != 11 {
		t.Errorf("after the worker went on the position is %d, want 11", got)
	}
	f.set(ordersTo(0, 5))
	if got := f.next(1, 0); got != 5 {
		t.Errorf("the position is %d, want 5", got)
	}
}

// A batch that stands behind its fence commits first, and Set sees it.
func TestSetWaitsForABatchThatIsCommitting(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token, epoch := f.take("worker", 1, 0)
	if err := f.handle(token, 1, 0, epoch, 100); err != nil {
		t.Fatal(err)
	}
	committing, err := f.Conn().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := committing.Exec(t.Context(), `select pg_advisory_xact_lock_shared(hashtext($1), 1)`, f.Schema); err != nil {
		t.Fatal(err)
	}
	const put = `insert into claimq.positions values (claimq.position_slot(now()), gen_random_uuid(), 1, '{1}', '{0}', array[$1::bigint], '{150}', '{0}')`
	if _, err := committing.Exec(t.Context(), f.schema.SQL(put), epoch); err != nil {
		t.Fatal(err)
	}
	done := make(chan []position.Moved, 1)
	go func() { done <- f.set(ordersTo(0, 10)) }()
	f.waitForBlocked()
	select {
	case moved := <-done:
		t.Fatalf("Set did not wait: %+v", moved)
	default:
	}
	if err := committing.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if moved := <-done; moved[0].From == nil || *moved[0].From != 150 {
		t.Errorf("Set = %+v, want it to come from 150, which was committed while it waited", moved[0])
	}
	if got := f.next(1, 0); got != 10 {
		t.Errorf("the position is %d, want 10", got)
	}
}

func (f *fixture) waitForBlocked() {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for blocked := false; !blocked; {
		err := f.Pool.QueryRow(f.t.Context(), "select exists (select from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock')", f.Name).Scan(&blocked)
		if err != nil {
			f.t.Fatal(err)
		}
		if time.Now().After(deadline) {
			f.t.Fatal("no session of the test came to wait for a lock within 10 s")
		}
	}
}

func TestSetGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder, err := f.Conn().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `select pg_advisory_xact_lock_shared(hashtext($1), 1)`, f.Schema); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := position.Set(ctx, f.Pool, f.schema, position.Order{Queue: 1, Moves: []position.Move{ordersTo(0, 1)}, Who: "ada", Why: "test"})
		done <- err
	}()
	f.waitForBlocked()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Set = %v, want the context's error", err)
	}
	if list := f.partitions(); len(list) != 0 {
		t.Errorf("Set has written %+v", list)
	}
}

func TestSetIsAudited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.set(ordersTo(0, 5))
	f.set(ordersTo(0, 2), ordersTo(1, 3))
	var who, why, moves string
	err := f.Pool.QueryRow(t.Context(), f.schema.SQL(`select who, why, detail->>'moves' from claimq.audit where action = 'position set' and queue = 1 order by id desc limit 1`)).Scan(&who, &why, &moves)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"to": 2, "from": 5, "topic": "orders", "partition": 0}, {"to": 3, "from": null, "topic": "orders", "partition": 1}]`
	if who != "ada" || why != "test" || moves != want {
		t.Errorf("the audit row is %q, %q, %s, want ada, test, %s", who, why, moves, want)
	}
}

func TestSetRefusesAnIncompleteOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	negative := ordersTo(0, -1)
	for name, order := range map[string]position.Order{
		"nobody":              {Queue: 1, Moves: []position.Move{ordersTo(0, 1)}, Why: "test"},
		"no reason":           {Queue: 1, Moves: []position.Move{ordersTo(0, 1)}, Who: "ada"},
		"nothing":             {Queue: 1, Who: "ada", Why: "test"},
		"a negative offset":   {Queue: 1, Moves: []position.Move{negative}, Who: "ada", Why: "test"},
		"a partition twice":   {Queue: 1, Moves: []position.Move{ordersTo(0, 1), ordersTo(0, 2)}, Who: "ada", Why: "test"},
		"an unknown topic id": {Queue: 1, Moves: []position.Move{{TopicID: uuid.New(), TopicName: "orders", Next: 1}}, Who: "ada", Why: "test"},
	} {
		if _, err := position.Set(t.Context(), f.Pool, f.schema, order); err == nil {
			t.Errorf("%s: Set takes it", name)
		}
	}
	if list := f.partitions(); len(list) != 0 {
		t.Errorf("a refused order has written %+v", list)
	}
	var notBegun *position.NotBegunError
	order := position.Order{Queue: 1, Moves: []position.Move{{TopicID: uuid.New(), TopicName: "new", Next: 1}}, Who: "ada", Why: "test"}
	if _, err := position.Set(t.Context(), f.Pool, f.schema, order); !errors.As(err, &notBegun) || notBegun.Topic != "new" {
		t.Errorf("a topic that the queue has not begun: %v, want a NotBegunError", err)
	}
}
