package consumer_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/outbox"
)

// The whole of it: records with repeats through three members that join and leave at
// random, with failures and effects, until everything is consumed.
func TestThePipeline(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	const (
		partitions = 6
		ids        = 3000
		keys       = 40
	)
	r := newRig(t, partitions)
	c := r.config()
	c.Retry = delayq.Policy{InitialDelay: 5 * time.Millisecond, Factor: 1, MaxAttempts: 4}
	c.RevokeBudget, c.StopBudget, c.Batch.Messages = 200*time.Millisecond, 100*time.Millisecond, 100
	insert := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
	c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		if _, err := tx.Exec(ctx, insert, m.Identity.ID, append(m.Record.Key, '/')); err != nil {
			return err
		}
		if err := m.Emit(outbox.Effect{Name: "done", Topic: "effects", Key: m.Record.Key, Value: []byte(m.Identity.ID)}); err != nil {
			return err
		}
		switch string(m.Record.Value) {
		case "fails twice":
			if m.Attempt < 3 {
				return errBoom
			}
		case "poison":
			return errBoom
		}
		return nil
	})
	poison := map[string]bool{}
	var records []*kgo.Record
	for i := range ids {
		id, key, value := "m"+strconv.Itoa(i), "k"+strconv.Itoa(i%keys), "works"
		switch {
		case i%100 == 17:
			value = "fails twice"
		case i%500 == 42:
			value, poison[id] = "poison", true
		}
		record := message(int32(i%keys%partitions), id, key, value)
		records = append(records, record)
		if random.IntN(10) == 0 && value != "poison" { // a repeat, later or at once
			again := *record
			records = append(records, &again)
		}
	}
	total := len(records)
	var producing sync.WaitGroup
	producing.Go(func() {
		for len(records) > 0 {
			n := min(1+random.IntN(400), len(records))
			r.produce(records[:n]...)
			records = records[n:]
		}
	})
	members := rand.New(rand.NewPCG(seed, 2))
	running := []*consumer.Consumer{r.start(c)}
	for range 8 {
		before := r.count(`select count(*) from %s.effects`)
		eventually(t, "some more is done", func() bool {
			n := r.count(`select count(*) from %s.effects`)
			return n >= before+100 || n == ids-len(poison)
		})
		if len(running) < 3 && (len(running) == 1 || members.IntN(2) == 0) {
			running = append(running, r.start(c))
			continue
		}
		i := members.IntN(len(running))
		r.stop(running[i])
		running = append(running[:i], running[i+1:]...)
		if len(running) == 0 {
			running = append(running, r.start(c))
		}
	}
	defer func() {
		if !t.Failed() {
			return
		}
		for _, q := range running {
			t.Logf("health: %+v", q.Health())
		}
		t.Logf("effects %d of %d; delayed %v; dead %d", r.count(`select count(*) from %s.effects`), ids-len(poison),
			r.strings(`select kind || ' ' || count(*) || ' ' || coalesce(min(due_at - now())::text, '') || ' ' || count(lease_token) from %s.delayed group by kind`),
			r.count(`select count(*) from %s.dead_letters`))
		t.Logf("waiting keys %v", r.strings(`select (ready_at - now())::text || ' leased ' || (lease_token is not null) from %s.delayed_keys limit 5`))
		for partition := range int32(partitions) {
			t.Logf("partition %d: position %d of %d", partition, r.position(partition), r.kafka.PartitionInfo(r.topic, partition).HighWatermark)
		}
	}()
	producing.Wait()
	eventually(t, "all is done", func() bool {
		return r.count(`select count(*) from %s.effects`) >= ids-len(poison) && r.count(`select count(*) from %s.delayed`) == 0 &&
			r.count(`select count(*) from %s.dead_letters`) == len(poison)
	})
	eventually(t, "positions are at the end", func() bool {
		sum := 0
		for partition := range int32(partitions) {
			sum += r.position(partition)
		}
		return sum == total
	})
	if all, distinct := r.count(`select count(*) from %s.effects`), r.count(`select count(distinct id) from %s.effects`); all != ids-len(poison) || distinct != all {
		t.Errorf("%d effects of %d ids, want %d", all, distinct, ids-len(poison))
	}
	if all, distinct := r.count(`select count(*) from %s.outbox`), r.count(`select count(distinct id) from %s.outbox`); all != ids-len(poison) || distinct != all {
		t.Errorf("%d records of %d effects in the outbox, want %d", all, distinct, ids-len(poison))
	}
	if n := r.count(`select count(*) from %s.claims`); n != ids-len(poison) {
		t.Errorf("%d claims, want %d", n, ids-len(poison))
	}
	// In order per key: ids of one key ascend, since one comes after the other in its
	// partition and no dead one holds its key.
	disorder := r.strings(`
select convert_from(value, 'UTF8') || ' ' || id from (
    select id, value, n, lag(substr(id, 2)::int) over (partition by value order by n) as before from %s.effects) e
 where before > substr(id, 2)::int limit 5`)
	if len(disorder) > 0 {
		t.Errorf("out of order: %q", disorder)
	}
}
