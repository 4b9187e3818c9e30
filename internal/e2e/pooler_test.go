package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/localbouncer"
	"github.com/claimq/claimq/outbox"
)

// All parts through PgBouncer in transaction mode, with few server connections, so
// that no two transactions of a client can rely on one session: the direct path,
// the delay queue, dead letters with their topic, the outbox and its relay.
func TestAWholeRunBehindPgBouncer(t *testing.T) {
	t.Parallel()
	s := newShop(t, 3)
	bouncer := bouncerFor(t, s, 4)
	pool := openPool(t, bouncer.DSN(), pgx.QueryExecModeCacheDescribe)
	effects, dead := kafkatest.Topic(t, 2), kafkatest.Topic(t, 1)
	const messages, failing, dying = 2000, 200, 100
	number := func(m *consumer.Message) (n int) {
		for _, digit := range m.Identity.ID[1:] {
			n = 10*n + int(digit-'0')
		}
		return n
	}
	config := queue(t, s.topic)
	config.Queue, config.Schema, config.Order, config.DeadLetterTopic, config.Logger = s.topic, s.db.Schema, consumer.OrderNone, dead, quiet()
	config.Retry = delayq.Policy{MaxAttempts: 2, InitialDelay: 50 * time.Millisecond}
	config.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		switch n := number(m); {
		case n%(messages/failing) == 1 && m.Attempt == 1:
			return errors.New("it fails once")
		case n%(messages/dying) == 2:
			return consumer.Permanent(errors.New("it never works"))
		}
		if _, err := tx.Exec(ctx, `insert into `+s.db.Schema+`.effects (id, key) values ($1, $2)`, m.Identity.ID, m.Record.Key); err != nil {
			return err
		}
		return m.Emit(outbox.Effect{Name: "done", Topic: effects, Key: m.Record.Key, Value: []byte(m.Identity.ID)})
	})
	start(t, pool, s.brokers, config)
	startRelayIn(t, pool, s.brokers, s.db.Schema)
	s.produce(messages)
	produce(t, s.producer, s.topic, 0, 100) // repeats
	eventually(t, "all effects", func() bool { return s.effects() == messages-dying })
	eventually(t, "all dead letters", func() bool { return s.ask(`select count(*) from SCHEMA.dead_letters`) >= dying })
	eventually(t, "the effects' records", func() bool { return len(published(t, s.brokers, effects)) == messages-dying })
	kafkatest.Fetch(t, s.brokers, dead, dying)
	eventually(t, "nothing is delayed any more", func() bool { return s.ask(`select count(*) from SCHEMA.delayed`) == 0 })
	if n := s.ask(`select count(distinct id) from SCHEMA.effects`); n != messages-dying {
		t.Errorf("%d messages have an effect, want %d", n, messages-dying)
	}
}

// Without the setting `claimq run` names it; with it the run works.
func TestRunBehindPgBouncerNamesTheSetting(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	bouncer := bouncerFor(t, s, 10)
	s.kcat(nil, `k|{"order_id":"o-1"}`)
	config := strings.Replace(s.ordersConfig(), "dsn: "+s.db.DSN, "dsn: "+bouncer.DSN(), 1)
	code, output := claimq(t, config, "run").ended()
	if code != 1 || !strings.Contains(output, "set database.pooler: true") {
		t.Errorf("exit code %d, and it says:\n%s", code, output)
	}
	config = strings.Replace(config, "  schema: ", "  pooler: true\n  direct_dsn: "+s.db.DSN+"\n  schema: ", 1)
	run := claimq(t, config, "run", "--migrate")
	eventually(t, "the row", func() bool { return s.ask(`select count(*) from SCHEMA.orders`) == 1 })
	run.stop()
}

// bouncerFor starts a PgBouncer before the shop's server. It does not follow
// prepared statements, as none did before 1.21 and later ones do when told.
func bouncerFor(t *testing.T, s *shop, connections int) *localbouncer.Server {
	t.Helper()
	bouncer, err := localbouncer.Start(t.Context(), localbouncer.Config{DSN: s.db.DSN, PoolSize: connections})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := bouncer.Stop(ctx); err != nil {
			t.Errorf("stop PgBouncer: %v", err)
		}
	})
	return bouncer
}
