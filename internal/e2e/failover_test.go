package e2e

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/internal/localbouncer"
	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/pgtest"
)

// A standby is promoted that lacks the last transactions, while consumer and relay
// live on and the group does not rebalance. Kafka's committed offset and the
// worker's memory are ahead of the new primary then: whoever trusts either loses
// the messages between.
func TestAFailoverThatLosesTransactionsLosesNoMessage(t *testing.T) {
	t.Parallel()
	t.Run("direct", func(t *testing.T) {
		t.Parallel()
		failover(t, func(primary, standby *localpg.Server) (*pgxpool.Pool, func()) {
			return openPool(t, localpg.JoinDSN("", primary, standby), pgx.QueryExecModeCacheStatement), func() {}
		})
	})
	t.Run("behind PgBouncer", func(t *testing.T) {
		t.Parallel()
		failover(t, func(primary, standby *localpg.Server) (*pgxpool.Pool, func()) {
			bouncer, err := localbouncer.Start(t.Context(), localbouncer.Config{DSN: primary.DSN("")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = bouncer.Stop(context.Background()) })
			return openPool(t, bouncer.DSN(), pgx.QueryExecModeCacheDescribe), func() {
				if err := bouncer.Repoint(t.Context(), standby.DSN("")); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
}

func failover(t *testing.T, connect func(primary, standby *localpg.Server) (*pgxpool.Pool, func())) {
	t.Helper()
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "orders", "orders-effects"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	brokers := kafka.ListenAddrs()
	primary := pgtest.Server(t, localpg.Config{})
	migrated(t, primary.DSN(""))
	standby := pgtest.Standby(t, primary, localpg.Config{})
	pool, repoint := connect(primary, standby)

	registry := prometheus.NewRegistry()
	metrics, err := consumer.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	config := queue(t, "orders")
	config.Metrics = metrics
	start(t, pool, brokers, config)
	startRelay(t, pool, brokers)
	producer := client(t, brokers)
	done := func(n int) func() bool {
		return func() bool { return number(t, pool, `select count(*) from effects`) == n }
	}

	produce(t, producer, "orders", 0, 500)
	eventually(t, "500 effects on the primary", done(500))
	if err := standby.WaitCaughtUp(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	if err := standby.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	produce(t, producer, "orders", 500, 1000)
	eventually(t, "1000 effects on the primary", done(1000))
	eventually(t, "their records are published, and will be lost from history", func() bool {
		return len(published(t, brokers, "orders-effects")) == 1000
	})
	if err := primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	repoint()
	produce(t, producer, "orders", 1000, 1500)
	eventually(t, "1500 effects on the new primary", done(1500))

	if n := number(t, pool, `select count(distinct id) from effects`); n != 1500 {
		t.Errorf("%d distinct effects, want 1500", n)
	}
	eventually(t, "all effects are published", func() bool { return len(published(t, brokers, "orders-effects")) == 1500 })
	for value, copies := range published(t, brokers, "orders-effects") {
		if len(copies) != 1 {
			t.Errorf("the effect of %q was published under %d ids: a consumer cannot tell its copies", value, len(copies))
		}
	}
	if lost := sum(t, registry, "claimq_lost_history_messages_total"); lost != 500 {
		t.Errorf("%v lost messages are reported, want 500", lost)
	}
	if n := number(t, pool, `select count(*) from claimq.delayed`) + number(t, pool, `select count(*) from claimq.dead_letters`); n != 0 {
		t.Errorf("%d messages are delayed or dead: a failover is not their fault", n)
	}
}

func sum(t *testing.T, registry *prometheus.Registry, name string) (total float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}
