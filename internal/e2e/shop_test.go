package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/pgtest"
)

// A shop is what the workers of a test work on: a schema with a business table,
// and a topic, on the shared servers.
type shop struct {
	t        *testing.T
	db       *pgtest.DB
	brokers  []string
	topic    string
	producer *kgo.Client
	admin    *kadm.Client
	made     int
}

const sqlEffects = `create table %s.effects (
	n bigint generated always as identity, id text not null, key bytea, value bytea,
	worker text not null default '', topic text, partition int, "offset" bigint)`

func newShop(t *testing.T, partitions int) *shop {
	t.Helper()
	return newShopOn(t, pgtest.DSN(t), kafkatest.Brokers(t), partitions)
}

// newShopOn is newShop on servers of the test's own.
func newShopOn(t *testing.T, dsn string, brokers []string, partitions int) *shop {
	t.Helper()
	s := &shop{t: t, db: pgtest.NewOn(t, dsn), brokers: brokers}
	s.topic = kafkatest.TopicOn(t, brokers, partitions, nil)
	s.producer = kafkatest.Client(t, brokers)
	s.admin = kadm.NewClient(s.producer)
	if _, err := s.db.Pool.Exec(t.Context(), fmt.Sprintf(sqlEffects, s.db.Schema)); err != nil {
		t.Fatal(err)
	}
	return s
}

// order is a worker's order for this shop, with short sessions.
func (s *shop) order(name string) workerOrder {
	return workerOrder{
		Name: s.workerName(name), DSN: s.db.DSN, Schema: s.db.Schema, Brokers: s.brokers,
		Queue: s.topic, Topics: []string{s.topic},
		Messages: 50,
		Session:  3 * time.Second, Rebalance: 30 * time.Second, Handler: 20 * time.Second,
		Revoke: time.Second, Lock: time.Second, Commit: 200 * time.Millisecond,
	}
}

// workerName is the application name of a worker's connections.
func (s *shop) workerName(name string) string { return name + "/" + s.db.Schema }

// produce writes the next messages: ids count up, over keys with a count each.
func (s *shop) produce(n int) {
	s.t.Helper()
	produce(s.t, s.producer, s.topic, s.made, s.made+n)
	s.made += n
}

// ask returns one number; where the statement says SCHEMA the schema stands.
func (s *shop) ask(sql string) int {
	s.t.Helper()
	return number(s.t, s.db.Pool, strings.ReplaceAll(sql, "SCHEMA", s.db.Schema))
}

func (s *shop) effects() int { return s.ask(`select count(*) from SCHEMA.effects`) }

// by is how many effects a worker has made.
func (s *shop) by(name string) int {
	return s.ask(`select count(*) from SCHEMA.effects where worker = '` + s.workerName(name) + `'`)
}

// owns is how many partitions a worker's process owns in the database.
func (s *shop) owns(p *process) int {
	return s.ask(fmt.Sprintf(`select count(*) from SCHEMA.owners where instance like '%%/%d/%%'`, p.PID()))
}

// inBatch tells whether a worker has written and not committed.
func (s *shop) inBatch(name string) bool {
	return s.ask(`select count(*) from pg_stat_activity where application_name = '`+s.workerName(name)+`' and backend_xid is not null`) > 0
}

// waitDone waits until every message has its effect.
func (s *shop) waitDone() {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d effects", s.made), func() bool {
		return s.ask(`select count(distinct id) from SCHEMA.effects`) == s.made
	})
}

// check compares the business table with what was produced: once each, in order
// per key.
func (s *shop) check() {
	s.t.Helper()
	if rows := s.effects(); rows != s.made {
		s.t.Errorf("%d rows for %d messages", rows, s.made)
	}
	if n := s.ask(`select count(distinct id) from SCHEMA.effects`); n != s.made {
		s.t.Errorf("%d messages of %d have an effect", n, s.made)
	}
	rows := s.ask(`select count(*) from (
		select substr(id, 2)::int as made, lag(substr(id, 2)::int) over (partition by key order by n) as before from SCHEMA.effects) as o
		where before > made`)
	if rows != 0 {
		s.t.Errorf("%d effects overtook an earlier one of their key", rows)
	}
	if n := s.ask(`select (select count(*) from SCHEMA.delayed) + (select count(*) from SCHEMA.dead_letters)`); n != 0 {
		s.t.Errorf("%d messages are delayed or dead", n)
	}
}

// waitPositions waits until the queue's positions are the topic's ends: what lanes
// left out of order is flushed within a second.
func (s *shop) waitPositions() {
	s.t.Helper()
	ends, err := s.admin.ListEndOffsets(s.t.Context(), s.topic)
	if err != nil {
		s.t.Fatal(err)
	}
	want := 0
	ends.Each(func(o kadm.ListedOffset) { want += int(o.Offset) })
	eventually(s.t, fmt.Sprintf("positions that sum up to %d", want), func() bool { return s.positions() == want })
}

// positions is the sum of the queue's positions.
func (s *shop) positions() int {
	return s.ask(`select coalesce(sum(p.next_offset), 0) from SCHEMA.queues q, SCHEMA.positions_of(q.id) p where q.name = '` + s.topic + `'`)
}

// waitStable waits until the group has so many members, all at rest, and returns.
func (s *shop) waitStable(members int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("a stable group of %d", members), func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		defer cancel()
		groups, err := s.admin.DescribeGroups(ctx, s.topic)
		return err == nil && groups[s.topic].State == "Stable" && len(groups[s.topic].Members) == members
	})
}
