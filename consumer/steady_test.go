package consumer_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/outbox"
)

// No row of claimq's gets a new version with every batch: there is nothing that a held
// snapshot makes grow. Repeats, effects and results are among the load.
func TestNoRowGetsAVersionWithEveryBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	c := r.config()
	c.Concurrency, c.Batch.Messages = 3, 10
	c.Handler = consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error {
		if err := m.SetResult([]byte("r")); err != nil {
			return err
		}
		return m.Emit(outbox.Effect{Name: "e", Topic: "effects", Value: m.Record.Value})
	})
	r.start(c)
	eventually(t, "it runs", func() bool { return r.position(2) == 0 })
	began := time.Now()
	total := 0
	for round := 0; time.Since(began) < 4*time.Second; round++ {
		var records []*kgo.Record
		for partition := range int32(3) {
			records = append(records, r.messages(partition, round*300+int(partition)*100, round*300+int(partition)*100+60)...)
			records = append(records, r.messages(partition, round*300+int(partition)*100, round*300+int(partition)*100+20)...)
		}
		total += len(records)
		r.produce(records...)
		eventually(t, "the round is done", func() bool { return r.outcome("processed")+r.outcome("duplicate") == total })
	}
	seconds := int(time.Since(began).Seconds()) + 2
	var batches int
	eventually(t, "the server's statistics have arrived", func() bool {
		batches = r.count(`select coalesce(sum(n_tup_ins), 0)::int from pg_stat_user_tables where schemaname = '%s' and relname like 'positions%%'`)
		return batches >= total/40
	})
	if batches < 5*seconds {
		t.Fatalf("only %d batches in %d s: the test shows nothing", batches, seconds)
	}
	for _, line := range r.strings(`
select relname || ' ' || (n_tup_upd + n_tup_del) from pg_stat_user_tables
 where schemaname = '%[1]s' and n_tup_upd + n_tup_del > 0 and relname <> 'effects'`) {
		table, count, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatal(err)
		}
		if n > seconds {
			t.Errorf("%s: %d versions in %d s, over %d batches", table, n, seconds, batches)
		}
	}
}

// A handler that is stuck holds a bounded part of a backlog in memory, its partitions
// are paused, others are not, and they resume.
func TestMemoryIsBoundedBehindAStuckHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	c := r.config()
	c.MaxBufferedBytes, c.HandlerTimeout, c.RebalanceTimeout, c.Concurrency = 4<<20, patience, 2*patience, 3
	release := make(chan struct{})
	c.Handler = r.gated(func(id string) <-chan struct{} {
		if strings.HasPrefix(id, "stuck") {
			return release
		}
		return nil
	})
	var read fetchedBytes
	q, err := consumer.New(r.db.Pool, []kgo.Opt{kgo.SeedBrokers(r.kafka.ListenAddrs()...), kgo.WithHooks(&read)}, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.stop(q) })
	eventually(t, "it runs", func() bool { return r.position(0) == 0 })
	r.produce(message(0, "stuck", "k", ""))
	eventually(t, "a handler is stuck", func() bool { return r.atGate.Load() == 1 })
	payload := strings.Repeat("x", 20<<10)
	for i := range 20 { // 40 MB behind it
		var records []*kgo.Record
		for n := range 100 {
			records = append(records, message(0, fmt.Sprint("m", i, "-", n), "k", payload))
		}
		r.produce(records...)
		if i%10 == 0 {
			r.produce(message(1, "other"+strconv.Itoa(i), "", ""))
			eventually(t, "the other partition goes on", func() bool { return r.position(1) == i/10+1 })
		}
	}
	eventually(t, "the partition is paused", func() bool { return r.metric("claimq_paused_partitions_total", "", "") > 0 })
	if got := read.of0.Load(); got > 10<<20 {
		t.Errorf("%d bytes of 40 MB were read behind the stuck handler; MaxBufferedBytes is %d", got, c.MaxBufferedBytes)
	}
	close(release)
	eventually(t, "all is done", func() bool { return r.position(0) == 2001 })
	if n := r.count(`select count(distinct id) from %s.effects`); n != 2003 {
		t.Errorf("%d effects, want 2003", n)
	}
}

// fetchedBytes counts what is read of partition 0.
type fetchedBytes struct{ of0 atomic.Int64 }

func (f *fetchedBytes) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, partition int32, batch kgo.FetchBatchMetrics) {
	if partition == 0 {
		f.of0.Add(int64(batch.UncompressedBytes))
	}
}
