package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/migrations"
)

func (r *rig) admin() *kadm.Client { return kadm.NewClient(r.producer) }

// commitOffsets moves a group's offsets in Kafka, as a person or an older consumer would.
func (r *rig) commitOffsets(group string, offsets map[int32]int64) {
	r.t.Helper()
	var list kadm.Offsets
	for partition, at := range offsets {
		list.AddOffset(r.topic, partition, at, -1)
	}
	if err := r.admin().CommitAllOffsets(r.t.Context(), group, list); err != nil {
		r.t.Fatal(err)
	}
}

func TestStartOfANewQueue(t *testing.T) {
	t.Parallel()
	middle := time.Now().Add(-time.Hour)
	for name, test := range map[string]struct {
		start     consumer.Start
		committed int64 // -1: none
		effects   int   // of 20 records that are there before, 10 of them before middle
	}{
		"committed":              {consumer.StartCommitted(), 15, 5},
		"committed with nothing": {consumer.StartCommitted(), -1, 20},
		"earliest":               {consumer.StartEarliest(), 15, 20},
		"latest":                 {consumer.StartLatest(), 15, 0},
		"a time":                 {consumer.StartAt(middle), 15, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			records := r.messages(0, 0, 20)
			for i, record := range records {
				record.Timestamp = middle.Add(time.Duration(2*i-19) * time.Minute)
			}
			r.produce(records...)
			c := r.config()
			c.Start = test.start
			if test.committed >= 0 {
				r.commitOffsets(c.Queue, map[int32]int64{0: test.committed})
			}
			r.start(c)
			eventually(t, "the start is decided", func() bool { return r.position(0) >= 0 })
			r.produce(message(0, "newest", "", ""))
			r.outcomes(map[string]int{"processed": test.effects + 1})
			if n := r.count(`select count(*) from %s.effects`); n != test.effects+1 {
				t.Errorf("%d effects, want %d", n, test.effects+1)
			}
		})
	}
}

// A partition that appears later begins at its beginning, whatever the start says:
// nothing in it was ever seen.
func TestAPartitionAddedLaterBeginsAtItsBeginning(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(message(0, "old", "", ""))
	c := r.config()
	c.Start = consumer.StartLatest()
	q := r.start(c)
	eventually(t, "the start is decided", func() bool { return r.position(0) == 1 })
	r.stop(q)
	if _, err := r.admin().CreatePartitions(t.Context(), 1, r.topic); err != nil {
		t.Fatal(err)
	}
	other, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	added := message(1, "added", "", "")
	added.Topic = r.topic
	if err := other.ProduceSync(t.Context(), added).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.start(c)
	r.outcomes(map[string]int{"processed": 1})
	r.once("added")
}

// Two workers that start a new queue under latest agree on one moment: nothing
// produced after it is lost.
func TestTwoWorkersStartANewQueueAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	for partition := range int32(4) {
		r.produce(r.messages(partition, int(partition)*100, int(partition)*100+50)...)
	}
	c := r.config()
	c.Start = consumer.StartLatest()
	var starting sync.WaitGroup
	queues := make([]*consumer.Consumer, 2)
	for i := range queues {
		starting.Go(func() {
			q, err := consumer.New(r.db.Pool, []kgo.Opt{kgo.SeedBrokers(r.kafka.ListenAddrs()...)}, c)
			if err == nil {
				err = q.Start(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
			queues[i] = q
		})
	}
	starting.Wait()
	t.Cleanup(func() {
		for _, q := range queues {
			r.stop(q)
		}
	})
	eventually(t, "the start is decided", func() bool { return r.position(0) == 50 })
	for partition := range int32(4) {
		if got := r.position(partition); got != 50 {
			t.Errorf("partition %d begins at %d, want 50", partition, got)
		}
		r.produce(message(partition, fmt.Sprint("new", partition), "", ""))
	}
	r.outcomes(map[string]int{"processed": 4})
}

func TestWhatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	q := r.start(r.config())
	eventually(t, "the queue is known", func() bool { return r.position(0) == 0 })
	r.stop(q)
	for name, test := range map[string]struct {
		change func(c *consumer.Config)
		as     any
		text   string
	}{
		"another group":   {func(c *consumer.Config) { c.Group = "other" }, new(*consumer.GroupError), `"other"`},
		"another rule":    {func(c *consumer.Config) { c.Rules.ID = []dedup.Source{dedup.Header("key")} }, new(*consumer.RuleChangedError), "--accept"},
		"a missing topic": {func(c *consumer.Config) { c.Topics = []string{"nowhere"} }, new(*consumer.MissingTopicError), `nowhere`},
		"no schema":       {func(c *consumer.Config) { c.Schema = "no_such_schema" }, new(*migrations.MissingSchemaError), "migrate"},
		"a slow handler": {func(c *consumer.Config) {
			c.HandlerTimeout, c.RebalanceTimeout, c.RevokeBudget = 10*time.Second, 10*time.Second, time.Second
		}, new(*consumer.ConfigError), "RebalanceTimeout"},
		"its own dead letters": {func(c *consumer.Config) { c.DeadLetterTopic = c.Topics[0] }, new(*consumer.ConfigError), "DeadLetterTopic"},
		"a short memory":       {func(c *consumer.Config) { c.Retention, c.ResendHorizon = time.Hour, 2*time.Hour }, new(*consumer.ConfigError), "ids are remembered"},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.config()
			test.change(&c)
			_, err := r.tryStart(c, r.db.Pool)
			if err == nil {
				t.Fatal("it started")
			}
			if !errors.As(err, test.as) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%T: %v; want %T and %q", err, err, test.as, test.text)
			}
		})
	}
	t.Run("another rule that is accepted", func(*testing.T) {
		c := r.config()
		c.Rules.ID, c.AcceptRuleChange = []dedup.Source{dedup.Header("key")}, true
		r.stop(r.start(c))
		c.AcceptRuleChange = false
		r.stop(r.start(c)) // it is the registered one now
	})
	t.Run("a newer schema", func(t *testing.T) {
		version := r.count(`select version from %s.schema_version`)
		r.exec(`update ` + r.db.Schema + `.schema_version set version = 9999`)
		var newer *migrations.NewerSchemaError
		if _, err := r.tryStart(r.config(), r.db.Pool); !errors.As(err, &newer) {
			t.Errorf("%T: %v; want a NewerSchemaError", err, err)
		}
		r.exec(`update `+r.db.Schema+`.schema_version set version = $1`, version)
	})
	t.Run("a wrong password", func(t *testing.T) {
		config, err := pgxpool.ParseConfig(r.db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.User, config.ConnConfig.Password = "nobody_of_that_name", "wrong"
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if _, err := r.tryStart(r.config(), pool); err == nil {
			t.Error("it started")
		}
	})
	t.Run("an unreachable broker", func(t *testing.T) {
		q, err := consumer.New(r.db.Pool, []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}, r.config())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Start(ctx); err == nil {
			t.Error("it started")
		}
		r.stop(q)
	})
	t.Run("twice", func(t *testing.T) {
		c := r.config()
		c.Queue = "once-q"
		q := r.start(c)
		if err := q.Start(t.Context()); err == nil {
			t.Error("it started twice")
		}
	})
}

// C03: Kafka's offsets of the group decide nothing.
func TestDeletedGroupOffsetsReadNothingAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	r.produce(r.messages(0, 0, 200)...)
	q := r.start(c)
	r.outcomes(map[string]int{"processed": 200})
	r.stop(q)
	if _, err := r.admin().DeleteGroup(t.Context(), c.Queue); err != nil {
		t.Fatal(err)
	}
	r.start(c)
	r.produce(message(0, "newest", "", ""))
	r.outcomes(map[string]int{"processed": 201, "duplicate": 0})
}

// Kafka's offset moved by hand is told and ignored.
func TestMovedGroupOffsetsAreIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	r.produce(r.messages(0, 0, 10)...)
	r.stop(r.startUntil(c, func() bool { return r.position(0) == 10 }))
	r.commitOffsets(c.Queue, map[int32]int64{0: 20})
	r.produce(r.messages(0, 10, 30)...)
	q := r.startUntil(c, func() bool { return r.position(0) == 30 })
	r.stop(q)
	if n := r.metric("claimq_offset_ahead_messages_total", "", ""); n != 10 {
		t.Errorf("%d offsets told as ahead, want 10", n)
	}
	r.commitOffsets(c.Queue, map[int32]int64{0: 3})
	r.startUntil(c, func() bool { return r.position(0) == 30 })
	r.produce(message(0, "newest", "", ""))
	r.outcomes(map[string]int{"processed": 31, "duplicate": 0})
}

// startUntil starts a consumer and waits for a condition.
func (r *rig) startUntil(c consumer.Config, condition func() bool) *consumer.Consumer {
	r.t.Helper()
	q := r.start(c)
	eventually(r.t, "the consumer is where it should be", condition)
	return q
}

// Rows of positions that are gone stop the queue, unless it is told to begin anew:
// then all is read again, and what is remembered is dropped.
func TestLostPositionsStopTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	c := r.config()
	c.Retry, c.Handler = never, r.kinds()["one"]
	r.produce(r.messages(0, 0, 50)...)
	r.produce(message(1, "waits", "w", "fails"), message(1, "dead", "d", "dies"))
	q := r.start(c)
	r.outcomes(map[string]int{"processed": 50, "delayed": 1, "dead": 1})
	r.stop(q)
	r.exec(`truncate ` + r.db.Schema + `.positions`)

	stopped, err := consumer.New(r.db.Pool, []kgo.Opt{kgo.SeedBrokers(r.kafka.ListenAddrs()...)}, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var lost *consumer.PositionsLostError
	if err := stopped.Run(ctx); !errors.As(err, &lost) || !strings.Contains(err.Error(), "position set") {
		t.Fatalf("Run: %v; want a PositionsLostError", err)
	}
	if h := stopped.Health(); h.Live || h.Ready {
		t.Errorf("health after it: %+v", h)
	}

	c.Start = consumer.StartEarliest().Anew()
	r.start(c)
	r.outcomes(map[string]int{"processed": 50, "duplicate": 50, "known": 2, "delayed": 1, "dead": 1})
	if n := r.count(`select count(*) from %s.effects`); n != 50 {
		t.Errorf("%d effects, want 50", n)
	}
}
