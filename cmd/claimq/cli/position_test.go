package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/pgtest"
)

// A positionFixture is a queue "q" that reads topic "orders" of two partitions,
// with ten records in each.
type positionFixture struct {
	*testEnv
	db      *pgtest.DB
	cluster *kfake.Cluster
	admin   *kadm.Client
}

func newPositionFixture(t *testing.T) *positionFixture {
	t.Helper()
	f := &positionFixture{cluster: kafkatest.Fake(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "orders"))}
	f.testEnv, f.db = databaseEnv(t)
	f.variables = append(f.variables, "CLAIMQ_BROKERS="+brokersOf(f.cluster))
	f.Now = time.Now
	f.admin = kadm.NewClient(kafkatest.Client(t, f.cluster.ListenAddrs()))
	var records []*kgo.Record
	for i := range 20 {
		at := time.Date(2026, 1, 1, 0, i/2, 0, 0, time.UTC) // a minute between records of a partition
		records = append(records, &kgo.Record{Partition: int32(i % 2), Value: []byte("x"), Timestamp: at})
	}
	kafkatest.ProduceOn(t, f.cluster.ListenAddrs(), "orders", records...)
	details, err := f.admin.ListTopics(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	addQueue(t, f.db, "q")
	f.begin("q", "orders", uuid.UUID(details["orders"].ID))
	return f
}

// begin makes a queue have begun a topic.
func (f *positionFixture) begin(queue, topic string, id uuid.UUID) {
	f.t.Helper()
	dbExec(f.t, f.db, `insert into claimq.topics (topic_id, name) values ($1, $2)`, id, topic)
	dbExec(f.t, f.db, `insert into claimq.queue_topics (queue, topic) select q.id, t.id from claimq.queues q, claimq.topics t where q.name = $1 and t.topic_id = $2`, queue, id)
}

// stand makes a worker own a partition of a topic, by its number, with a position.
func (f *positionFixture) stand(topic, partition int, next int64) {
	f.t.Helper()
	dbExec(f.t, f.db, `select claimq.take_ownership(1, 'worker-1', gen_random_uuid(), array[$1::int], array[$2::int])`, topic, partition)
	dbExec(f.t, f.db, `insert into claimq.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs)
		values (claimq.position_slot(now()), gen_random_uuid(), 1, array[$1::int], array[$2::int], '{1}', array[$3::bigint], '{0}')`, topic, partition, next)
}

// commit sets Kafka's committed offset of group q.
func (f *positionFixture) commit(partition int32, at int64) {
	f.t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset("orders", partition, at, -1)
	if err := f.admin.CommitAllOffsets(f.t.Context(), "q", offsets); err != nil {
		f.t.Fatal(err)
	}
}

func (f *positionFixture) show() positionsView {
	f.t.Helper()
	return decodeJSON[positionsView](f.t, f.mustRun("position", "show", "--queue", "q", "--json"))
}

// nexts are the positions of orders' partitions, -1 for none.
func (f *positionFixture) nexts() []int64 {
	f.t.Helper()
	nexts := []int64{-1, -1}
	for _, p := range f.show().Positions {
		if p.Topic == "orders" && p.Position != nil {
			nexts[p.Partition] = *p.Position
		}
	}
	return nexts
}

func TestPositionShow(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.stand(1, 0, 4)
	f.stand(1, 1, 10)
	f.commit(0, 9)
	view := f.show()
	for i := range view.Positions {
		p := &view.Positions[i]
		if p.WrittenAt == nil || p.OwnedSince == nil {
			t.Errorf("partition %d has no times", p.Partition)
		}
		p.WrittenAt, p.OwnedSince = nil, nil
	}
	n := func(n int64) *int64 { return &n }
	want := []positionView{
		{Queue: "q", Topic: "orders", Partition: 0, Position: n(4), Committed: n(9), Begin: n(0), End: n(10), Lag: n(6), Owner: "worker-1", OwnerEpoch: n(1)},
		{Queue: "q", Topic: "orders", Partition: 1, Position: n(10), Begin: n(0), End: n(10), Lag: n(0), Owner: "worker-1", OwnerEpoch: n(1)},
	}
	if diff := cmp.Diff(want, view.Positions); diff != "" {
		t.Errorf("position show --json (-want +got):\n%s", diff)
	}
	wantAll(t, f.mustRun("position", "show"), "QUEUE", "orders", "worker-1", "ahead of the position in 1 partition and is ignored", "claimq position set")
	f.commit(0, 2)
	wantAll(t, f.mustRun("position", "show", "-q", "q"), "behind the position in 1 partition and is ignored")
}

func TestPositionShowWithoutKafka(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.stand(1, 0, 4)
	f.cluster.Close()
	wantAll(t, f.refuse(ExitPartial, "position", "show", "--json"), "no broker answers")
	var view positionsView
	if err := json.Unmarshal([]byte(f.stdout.String()), &view); err != nil || len(view.Positions) != 1 {
		t.Fatalf("%v: %s", err, f.stdout)
	}
	if p := view.Positions[0]; p.Position == nil || *p.Position != 4 || p.End != nil || p.Lag != nil {
		t.Errorf("without Kafka the position is shown as %+v", p)
	}
}

func TestPositionShowOfATopicThatWasMadeAgain(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.begin("q", "orders", uuid.New())
	f.stand(2, 0, 77)
	said := f.mustRun("position", "show")
	wantAll(t, said, "was deleted and made again")
	for _, p := range f.show().Positions {
		if p.Recreated && (p.End != nil || p.Lag != nil) {
			t.Errorf("the old topic's partition is compared with the new topic: %+v", p)
		}
	}
}

func TestPositionShowWithoutAnyPosition(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	wantAll(t, f.mustRun("position", "show"), "No queue has a position yet")
	wantAll(t, f.refuse(ExitNothing, "position", "show", "--queue", "orders"), `did you mean "q"?`)
}

func TestPositionSet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want []int64
		said []string
	}{
		{"back to an offset", []string{"--partition", "0", "--to", "2"}, []int64{2, 10}, []string{"2 read again", "dropped as duplicates", "remembered"}},
		{"to the beginning", []string{"--all", "--to", "earliest"}, []int64{0, 0}, []string{"14 offsets are read again"}},
		{"to the end", []string{"--all", "--to", "latest"}, []int64{10, 10}, []string{"6 skipped", "never handled"}},
		{"to a time", []string{"--all", "--to", "2026-01-01T00:07:00Z"}, []int64{7, 7}, []string{"3 skipped", "3 read again"}},
		{"to a time with another zone", []string{"--partition", "0,1", "--to", "2026-01-01T02:07:00+02:00"}, []int64{7, 7}, nil},
		{"to a time that is yet to come", []string{"--all", "--to", "2999-01-01T00:00:00Z"}, []int64{10, 10}, nil},
		{"nowhere", []string{"--partition", "0", "--to", "4"}, []int64{4, 10}, []string{"the same"}},
		{"a dry run", []string{"--all", "--to", "earliest", "--dry-run"}, []int64{4, 10}, []string{"4 read again", "10 read again", "nothing was done"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newPositionFixture(t)
			f.stand(1, 0, 4)
			f.stand(1, 1, 10)
			args := append([]string{"position", "set", "--queue", "q", "--topic", "orders", "--why", "test"}, tt.args...)
			wantAll(t, f.mustRun(args...), tt.said...)
			if diff := cmp.Diff(tt.want, f.nexts()); diff != "" {
				t.Errorf("the positions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPositionSetIsAuditedAndToldAsJSON(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.stand(1, 0, 4)
	view := decodeJSON[movedView](t, f.mustRun("position", "set", "-q", "q", "-p", "0", "--to", "1", "--why", "INC-12", "--json"))
	from := int64(4)
	if diff := cmp.Diff([]moveView{{Topic: "orders", Partition: 0, From: &from, To: 1}}, view.Moves); diff != "" {
		t.Errorf("the moves (-want +got):\n%s", diff)
	}
	var who, why, action string
	err := f.db.Pool.QueryRow(t.Context(), "select who, why, action from "+f.db.Schema+".audit").Scan(&who, &why, &action)
	if err != nil || who != "ada" || why != "INC-12" || action != "position set" {
		t.Errorf("the audit has %q, %q, %q, %v", who, why, action, err)
	}
	wantAll(t, f.mustRun("position", "show"), "position set by ada")
}

func TestPositionSetOfAQueueThatClaimsNothing(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	dbExec(t, f.db, `update claimq.queues set config = '{"claims": "none"}'`)
	f.stand(1, 0, 4)
	wantAll(t, f.mustRun("position", "set", "-q", "q", "-p", "0", "--to", "earliest", "--why", "x"), "handled again", "claims: none")
}

func TestPositionSetRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	set := func(code int, said string, args ...string) {
		t.Helper()
		wantAll(t, f.refuse(code, append([]string{"position", "set"}, args...)...), said)
	}
	set(ExitNothing, "has no position yet", "-q", "q", "--all", "--to", "latest", "--why", "x")
	f.stand(1, 0, 4)
	set(ExitUsage, "--queue is missing", "--all", "--to", "latest", "--why", "x")
	set(ExitUsage, "--why is missing", "-q", "q", "--all", "--to", "latest")
	set(ExitUsage, "--to is missing", "-q", "q", "--all", "--why", "x")
	set(ExitUsage, "which partitions", "-q", "q", "--to", "latest", "--why", "x")
	set(ExitUsage, "which partitions", "-q", "q", "--all", "-p", "0", "--to", "latest", "--why", "x")
	set(ExitUsage, `"yesterday" is none of`, "-q", "q", "--all", "--to", "yesterday", "--why", "x")
	set(ExitUsage, "cannot be negative", "-q", "q", "--all", "--to=-1", "--why", "x")
	set(ExitUsage, "holds the offsets from 0 to 10", "-q", "q", "-p", "0", "--to", "11", "--why", "x")
	set(ExitNothing, "has no partition 7", "-q", "q", "-p", "7", "--to", "1", "--why", "x")
	set(ExitNothing, `did you mean "orders"?`, "-q", "q", "-t", "order", "--all", "--to", "1", "--why", "x")
	set(ExitNothing, `did you mean "q"?`, "-q", "qq", "--all", "--to", "1", "--why", "x")
	if diff := cmp.Diff([]int64{4, -1}, f.nexts()); diff != "" {
		t.Errorf("a refused order has moved something (-want +got):\n%s", diff)
	}
	f.begin("q", "refunds", uuid.New())
	f.stand(2, 0, 0)
	set(ExitUsage, "queue q reads orders, refunds", "-q", "q", "--all", "--to", "1", "--why", "x")
	set(ExitNothing, "Kafka has no topic", "-q", "q", "-t", "refunds", "--all", "--to", "1", "--why", "x")
}

func TestAgesAreRounded(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "under 1s", 0: "under 1s", 1400 * time.Millisecond: "1s", 90 * time.Second: "1m30s",
		3*time.Hour + 25*time.Minute + 31*time.Second: "3h26m", 50*time.Hour + 20*time.Minute: "2d2h", 24 * time.Hour: "1d",
	} {
		if got := ageText(d); got != want {
			t.Errorf("ageText(%v) = %q, want %q", d, got, want)
		}
	}
	if got := fmt.Sprint((&Env{}).ago(nil)); got != "" {
		t.Errorf("nothing is %q ago", got)
	}
	if got := strings.TrimSpace(orDash(nil)); got != "" {
		t.Errorf("no number is %q", got)
	}
}
