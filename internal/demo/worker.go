package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
)

// workerOrder is the first line that a worker process is given on its input, which
// stays open for as long as the parent lives.
type workerOrder struct {
	Names names `json:"names"`
	// Brokers and DSN lead to servers of the run's own; empty: the worker's command
	// knows where they are.
	Brokers []string `json:"brokers,omitempty"`
	DSN     string   `json:"dsn,omitempty"`
}

// A holdOrder is the second line, if any: from now on, after how many messages the
// worker is to stop in the middle of a batch.
type holdOrder struct {
	HoldAfter int `json:"hold_after"`
}

// workerEvent is a line of a worker's output.
type workerEvent struct {
	// Event is started, holding or failed.
	Event string `json:"event"`
	// Written is how many orders are written and not committed.
	Written int `json:"written,omitempty"`
	// Error is why it failed.
	Error string `json:"error,omitempty"`
}

// The events of a worker.
const (
	eventStarted = "started"
	eventHolding = "holding"
	eventFailed  = "failed"
)

// Given tells a worker where the servers are that its parent was given: each is
// called only when its server was.
type Given struct {
	Kafka    func() ([]kgo.Opt, error)
	Postgres func() (*pgxpool.Config, error)
}

// RunWorker is the body of the process that is killed: a consumer of the run's
// queue, until in ends, which it does when the parent is gone, however it went. The
// error has been reported on out.
func RunWorker(ctx context.Context, in io.Reader, out, log io.Writer, given Given) (err error) {
	tell := json.NewEncoder(out)
	defer func() {
		if err != nil {
			_ = tell.Encode(workerEvent{Event: eventFailed, Error: err.Error()}) //nolint:errchkjson // the parent is gone when it cannot be told
		}
	}()
	orders := json.NewDecoder(in)
	var w workerOrder
	if err := orders.Decode(&w); err != nil {
		return fmt.Errorf("the worker of a demo is started by `claimq demo`: no order on standard input: %w", err)
	}
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	hold := newHolder(func(n int) { _ = tell.Encode(workerEvent{Event: eventHolding, Written: n}) }, ctx.Done())
	go func() {
		defer gone()
		var h holdOrder
		for orders.Decode(&h) == nil {
			hold.arm(h.HoldAfter)
		}
	}()
	kafka, pool, err := w.connect(ctx, given)
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	c, err := consumer.New(pool, kafka, queueConfig(w.Names, "consumer 2", logger, hold))
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	_ = tell.Encode(workerEvent{Event: eventStarted}) //nolint:errchkjson // as above
	select {
	case <-ctx.Done():
	case <-c.Done():
		err = c.Err()
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBudget)
	defer cancel()
	_ = c.Stop(stopping) // the parent is gone, or is told of err
	return err
}

// stopBudget bounds the stop of a consumer.
const stopBudget = 10 * time.Second

func (w *workerOrder) connect(ctx context.Context, given Given) (kafka []kgo.Opt, pool *pgxpool.Pool, err error) {
	kafka = plainKafka(w.Brokers)
	if len(w.Brokers) == 0 {
		if kafka, err = given.Kafka(); err != nil {
			return nil, nil, err
		}
	}
	postgres := given.Postgres
	if w.DSN != "" {
		postgres = func() (*pgxpool.Config, error) { return pgxpool.ParseConfig(w.DSN) }
	}
	config, err := postgres()
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = max(config.MaxConns, poolSize)
	pool, err = pgxpool.NewWithConfig(ctx, config)
	return kafka, pool, err
}
