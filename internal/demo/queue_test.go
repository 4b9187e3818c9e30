package demo

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
)

func messageOf(o *order, attempt int) *consumer.Message {
	return &consumer.Message{Record: &kgo.Record{Value: o.encode()}, Attempt: attempt}
}

func TestTheHandlerFailsAsTheOrderSays(t *testing.T) {
	t.Parallel()
	h := &handler{sql: sqlInsertOrder, effects: testEffects, worker: "w"}
	var classed consumer.ClassedError
	cases := map[string]struct {
		message *consumer.Message
		queued  int
		check   func(error) bool
	}{
		"good":                   {messageOf(&order{ID: "a"}, 1), 1, func(err error) bool { return err == nil }},
		"second of two failures": {messageOf(&order{ID: "a", FailFirst: 2}, 2), 0, func(err error) bool { return errors.Is(err, errWarehouse) }},
		"works at the third":     {messageOf(&order{ID: "a", FailFirst: 2}, 3), 1, func(err error) bool { return err == nil }},
		"account closed":         {messageOf(&order{ID: "a", Closed: true}, 1), 0, func(err error) bool { return errors.Is(err, errClosed) }},
		"no order": {&consumer.Message{Record: &kgo.Record{Value: []byte("{")}, Attempt: 1}, 0, func(err error) bool {
			return errors.As(err, &classed) && classed.ErrorClass() == "undecodable"
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := &pgx.Batch{}
			if err := h.handle(context.Background(), b, c.message); !c.check(err) || b.Len() != c.queued {
				t.Errorf("error %v, %d statements; want %d", err, b.Len(), c.queued)
			}
		})
	}
}

// results answers a batch's statements: what sends a batch calls the functions of
// its statements one after the other.
type results struct{ pgx.BatchResults }

func (results) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, nil }

func runBatch(b *pgx.Batch) {
	for _, q := range b.QueuedQueries {
		_ = q.Fn(results{})
	}
}

func batchOf(h *holder, statements int) *pgx.Batch {
	b := &pgx.Batch{}
	for range statements {
		h.watch(b, b.Queue("select 1"))
	}
	return b
}

func TestAHolderHoldsAtTheEndOfABatchOnceItIsArmed(t *testing.T) {
	t.Parallel()
	held := make(chan int, 2)
	forever := make(chan struct{})
	h := newHolder(func(n int) { held <- n }, forever)
	runBatch(batchOf(h, 5)) // not armed: returns
	h.arm(10)
	runBatch(batchOf(h, 8)) // 8 of 10: returns
	done := make(chan struct{})
	go func() { defer close(done); runBatch(batchOf(h, 7)) }()
	select {
	case n := <-held:
		if n != 7 {
			t.Errorf("it holds after %d statements, want 7: all of the batch", n)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not hold")
	}
	select {
	case <-done:
		t.Fatal("the batch went on")
	default:
	}
	close(forever)
	<-done
	if len(held) != 0 || len(h.batches) != 0 {
		t.Errorf("told %d times more, %d batches kept", len(held), len(h.batches))
	}
}

func TestAHolderCountsTwoLanesApart(t *testing.T) {
	t.Parallel()
	forever := make(chan struct{})
	close(forever)
	var told []int
	h := newHolder(func(n int) { told = append(told, n) }, forever)
	h.arm(0)
	first, second := batchOf(h, 3), batchOf(h, 4)
	_ = first.QueuedQueries[0].Fn(results{})
	runBatch(second)
	if len(told) != 1 || told[0] != 4 {
		t.Errorf("told %v, want [4]: the first batch has not run to its end", told)
	}
}

func TestAHolderLeavesABatchOfOneAlone(t *testing.T) {
	t.Parallel()
	told := false
	h := newHolder(func(int) { told = true }, make(chan struct{}))
	h.arm(0)
	runBatch(batchOf(h, 1))
	if told {
		t.Error("it holds in a batch of one order, which has no middle")
	}
}
