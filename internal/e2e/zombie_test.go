package e2e

import (
	"net/url"
	"testing"
	"time"

	"github.com/claimq/claimq/internal/pgtest"
)

// A worker is frozen between Kafka's assignment and its take-over in Postgres. The
// other gets its partitions and works on them; then the zombie wakes and, before
// it hears from Kafka, takes them over in Postgres. Neither would ever write
// again: the rightful owner is fenced, the zombie is no member. The owner has to
// ask the coordinator and take the partition back.
func TestAZombieThatTakesOwnershipDoesNotLeaveThePartitionStanding(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	database := newGate(t, pgtest.HostPort(t, s.db.DSN))
	kafka := newGate(t, s.brokers[0])
	database.shutAt("topics (topic_id, name) values") // the first thing inside the assignment
	order := s.order("zombie")
	order.DSN, order.KafkaProxy = through(t, s.db.DSN, database), kafka.address()
	zombie := worker(t, order)
	waitFor(t, "the zombie is inside its assignment", database.reached)
	zombie.freeze()

	other := worker(t, s.order("other"))
	eventually(t, "the other owns both partitions", func() bool { return s.owns(other) == 2 })
	s.produce(500)
	s.waitDone()

	kafka.set(true) // what the zombie asks Kafka is not answered yet
	zombie.thaw()
	database.set(false)
	eventually(t, "the zombie has taken ownership", func() bool { return s.owns(zombie) == 2 })
	woken := time.Now()
	s.produce(500)
	s.waitDone()
	if took := time.Since(woken); took > 5*time.Second {
		t.Errorf("the partitions stood for %s, want at most 5s", took)
	}
	if n := s.owns(other); n != 2 {
		t.Errorf("the rightful worker owns %d partitions, want 2", n)
	}
	if n := s.by("zombie"); n != 0 {
		t.Errorf("the zombie has made %d effects", n)
	}
	kafka.set(false)
	eventually(t, "the woken one has its share", func() bool { return s.owns(zombie) == 1 && s.owns(other) == 1 })
	s.produce(500)
	s.waitDone()
	s.waitPositions()
	s.check()
	zombie.stop()
	other.stop()
}

// through is a DSN that leads through a gate.
func through(t *testing.T, dsn string, g *gate) string {
	t.Helper()
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	address.Host = g.address()
	return address.String()
}

func waitFor(t *testing.T, what string, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(patience):
		t.Fatalf("after %s: still not: %s", patience, what)
	}
}
