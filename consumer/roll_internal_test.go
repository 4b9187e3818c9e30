package consumer

import (
	"testing"
	"time"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
)

// A worker without lag must not forget what another worker's backlog, or a queue
// that nobody runs, can still repeat.
func TestABacklogAnywhereHoldsWhatIsForgotten(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	c := &Consumer{pool: db.Pool, sql: newStatements(pgschema.Schema(db.Schema))}
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Pool.Exec(t.Context(), pgschema.Schema(db.Schema).SQL(sql)); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`insert into claimq.queues (name, group_name, rule) values ('busy', 'g', 'r'), ('behind', 'g', 'r'), ('stopped', 'g', 'r'), ('unknown', 'g', 'r'), ('library', 'g', 'r')`)
	exec(`insert into claimq.topics (topic_id, name) values (gen_random_uuid(), 't')`)
	exec(`insert into claimq.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs, written_at)
	      select 0, gen_random_uuid(), id, '{1}', '{0}', '{1}', '{5}', '{-1}', now() - interval '3 days' from claimq.queues where name <> 'library'`)
	exec(`insert into claimq.workers (instance, queues, host, version, seen_at, stats) values
	      ('a', '{busy,behind}', 'h', 'v', now(), '{"busy": {"lag": 0}, "behind": {"lag": 0}}'),
	      ('b', '{behind}', 'h', 'v', now(), jsonb_build_object('behind', jsonb_build_object('stands_at', now() - interval '9 days'))),
	      ('c', '{unknown}', 'h', 'v', now(), '{"unknown": {"stands_at": "-infinity"}}'),
	      ('gone', '{busy}', 'h', 'v', now() - interval '1 hour', '{"busy": {"stands_at": "2001-01-01T00:00:00Z"}}')`)
	times, err := c.streamTimes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for queue, want := range map[int32]time.Duration{2: 9 * 24 * time.Hour, 3: 3 * 24 * time.Hour, 4: 60 * 24 * time.Hour} {
		if age := time.Since(times[queue]); age < want-time.Minute || age > want+time.Minute {
			t.Errorf("queue %d stands %s back, want %s", queue, age, want)
		}
	}
	for _, queue := range []int32{1, 5} {
		if at, held := times[queue]; held {
			t.Errorf("queue %d holds at %s and has nothing left to handle", queue, at)
		}
	}
	// Rotation carries positions over and must not make a queue look alive.
	exec(`delete from claimq.positions where slot <> (claimq.position_slot(clock_timestamp()) + 1) % 3`)
	exec(`update claimq.positions set slot = (claimq.position_slot(clock_timestamp()) + 1) % 3`)
	exec(`select claimq.rotate_positions()`)
	if times, err = c.streamTimes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if age := time.Since(times[3]); age < 71*time.Hour {
		t.Errorf("after a rotation the stopped queue stands %s back, want 3 days", age)
	}
}

func TestStandsAtTellsTheOldestRecordNotHandled(t *testing.T) {
	t.Parallel()
	c := &Consumer{scheduler: newScheduler(BatchLimits{}), partitions: map[partitionKey]*partition{}}
	first, second := newPartition(partitionKey{"t", 0}, 1, 10, 1), newPartition(partitionKey{"t", 1}, 1, 10, 1)
	c.partitions[first.partitionKey], c.partitions[second.partitionKey] = first, second
	if got := c.standsAt(); got != "-infinity" {
		t.Errorf("before the ends are known it stands at %q", got)
	}
	first.highWater, second.highWater = 10, 10
	if got := c.standsAt(); got != "" {
		t.Errorf("at the end it stands at %q", got)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	first.track.add(10, at.Add(time.Hour))
	second.track.add(10, at)
	if got := c.standsAt(); got != "2026-01-02T03:04:05.000000006Z" {
		t.Errorf("with records in hand it stands at %q, want the oldest's time", got)
	}
	second.track.finish(10)
	second.highWater = 12
	if got := c.standsAt(); got != "-infinity" {
		t.Errorf("with a record that was not fetched it stands at %q", got)
	}
}
