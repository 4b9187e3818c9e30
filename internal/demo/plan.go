package demo

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
)

// MinOrders is the least that has some of every kind in it.
const MinOrders = 200

// DefaultOrders is how many records are sent unless told otherwise.
const DefaultOrders = 50_000

// partitions of the topic with the orders.
const partitions = 6

// maxAttempts is how often an order is tried; those that fail twice then work.
const (
	maxAttempts = 3
	failsFirst  = 2
)

// kind is what a record is in the mix.
type kind uint8

const (
	good        kind = iota // applied at the first attempt
	flaky                   // fails twice, then works
	repeat                  // a record before it, byte for byte, at another offset
	conflicting             // the id of an order before it, asking for something else
	undecodable             // no JSON
	missingID               // no idempotency key
	closed                  // fails for good
	hopeless                // fails at every attempt
)

// reason is what a record of the kind dies of; "" when it does not.
func (k kind) reason() dlq.Reason {
	switch k {
	case conflicting:
		return dlq.Conflict
	case undecodable:
		return dlq.Undecodable
	case missingID:
		return dlq.MissingID
	case closed:
		return dlq.Permanent
	case hopeless:
		return dlq.Exhausted
	default:
		return ""
	}
}

// applied reports whether a record of the kind is the one that makes its order's
// row.
func (k kind) applied() bool { return k == good || k == flaky }

// A sending is one record of the mix.
type sending struct {
	kind      kind
	id        string // the idempotency key; "" for missingID
	customer  string // the record key: what is kept in order
	value     []byte
	partition int32
	// roams: a copy of this order stands in another partition, where another consumer
	// may come to it first. The order per customer says nothing about it.
	roams bool
	// offset is Kafka's, known when the record is acknowledged.
	offset int64
}

// record returns what is produced. Its Context leads back to the sending.
func (s *sending) record(topic string) *kgo.Record {
	r := &kgo.Record{Topic: topic, Partition: s.partition, Key: []byte(s.customer), Value: s.value}
	if s.id != "" {
		r.Headers = []kgo.RecordHeader{{Key: headerID, Value: []byte(s.id)}}
	}
	return r
}

// A plan is all that is sent, in the order of sending.
type plan struct {
	seed     uint64
	sendings []*sending
}

// shares of the mix, in thousandths of all records.
const (
	perRepeat      = 100
	perFlaky       = 10
	perConflict    = 5
	perUndecodable = 2
	perMissingID   = 1
	perClosed      = 2
	perHopeless    = 1
)

// newPlan makes the mix. The same seed and number make the same plan.
func newPlan(seed uint64, orders int) *plan {
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a mix, not a secret
	share := func(thousandths int) int { return max(orders*thousandths/1000, 1) }
	repeats, conflicts := share(perRepeat), share(perConflict)
	broken, nameless := share(perUndecodable), share(perMissingID)
	firsts := orders - repeats - conflicts - broken - nameless
	m := &mixer{rng: rng, customers: max(firsts/10, 20), span: float64(firsts)}
	kinds := make([]kind, firsts)
	at := 0
	for _, special := range []struct {
		kind  kind
		count int
	}{{flaky, share(perFlaky)}, {closed, share(perClosed)}, {hopeless, share(perHopeless)}} {
		for range special.count {
			kinds[at] = special.kind
			at++
		}
	}
	rng.Shuffle(firsts, func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for i, k := range kinds {
		m.first(i, k)
	}
	for range repeats {
		m.repeat()
	}
	for range conflicts {
		m.conflict()
	}
	for i := range broken {
		m.undecodable(i)
	}
	for i := range nameless {
		m.missingID(i)
	}
	return &plan{seed: seed, sendings: m.inOrder()}
}

// A mixer puts sendings at places, and copies behind what they are copies of.
type mixer struct {
	rng       *rand.Rand
	customers int
	span      float64
	placed    []placed
	applied   []placed // what may be repeated
}

type placed struct {
	at float64
	*sending
}

func (m *mixer) put(at float64, s *sending) placed {
	p := placed{at, s}
	m.placed = append(m.placed, p)
	return p
}

func (m *mixer) customer() string { return "customer-" + strconv.Itoa(m.rng.IntN(m.customers)) }

func (m *mixer) first(i int, k kind) {
	o := &order{ID: fmt.Sprintf("order-%06d", i), Customer: m.customer(), Cents: 100 + m.rng.Int64N(50_000)}
	switch k {
	case flaky:
		o.FailFirst = failsFirst
	case hopeless:
		o.FailFirst = 1 << 20
	case closed:
		o.Closed = true
	default:
	}
	p := m.put(float64(i), &sending{kind: k, id: o.ID, customer: o.Customer, value: o.encode(), partition: partitionOf(o.Customer)})
	if k.applied() {
		m.applied = append(m.applied, p)
	}
}

// behind returns one of the orders and a place behind it: near it, as when a
// producer tries again, or anywhere, as when a topic is sent once more.
func (m *mixer) behind() (placed, float64) {
	original := m.applied[m.rng.IntN(len(m.applied))]
	reach := 50.0
	if m.rng.IntN(2) == 0 {
		reach = m.span - original.at
	}
	return original, original.at + 0.1 + m.rng.Float64()*reach
}

// repeat sends an order again; one of five comes by another partition.
func (m *mixer) repeat() {
	original, at := m.behind()
	again := &sending{kind: repeat, id: original.id, customer: original.customer, value: original.value, partition: original.partition}
	if m.rng.IntN(5) == 0 {
		again.partition = (again.partition + 1) % partitions
		original.roams = true
	}
	m.put(at, again)
}

// conflict uses an order's id for another amount, in the same partition: which of
// the two is first is then not left to chance.
func (m *mixer) conflict() {
	original, at := m.behind()
	o, err := decode(original.value)
	if err != nil {
		panic(err) // it was made here
	}
	o.Cents += 1 + m.rng.Int64N(1000)
	m.put(at, &sending{kind: conflicting, id: o.ID, customer: o.Customer, value: o.encode(), partition: original.partition})
}

func (m *mixer) undecodable(i int) {
	customer := m.customer()
	m.put(m.rng.Float64()*m.span, &sending{
		kind: undecodable, id: fmt.Sprintf("broken-%04d", i), customer: customer, partition: partitionOf(customer),
		value: []byte(`{"order_id":"broken-` + strconv.Itoa(i) + "\x00\xff"),
	})
}

func (m *mixer) missingID(i int) {
	o := &order{ID: fmt.Sprintf("nameless-%04d", i), Customer: m.customer(), Cents: 1}
	m.put(m.rng.Float64()*m.span, &sending{kind: missingID, customer: o.Customer, value: o.encode(), partition: partitionOf(o.Customer)})
}

func (m *mixer) inOrder() []*sending {
	slices.SortStableFunc(m.placed, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	list := make([]*sending, len(m.placed))
	for i, p := range m.placed {
		list[i] = p.sending
	}
	return list
}

func partitionOf(customer string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(customer))
	return int32(h.Sum32() % partitions)
}

// count counts the sendings of a kind.
func (p *plan) count(k kind) (n int) {
	for _, s := range p.sendings {
		if s.kind == k {
			n++
		}
	}
	return n
}

// String tells the mix in a line.
func (p *plan) String() string {
	return fmt.Sprintf("%s orders: %s repeats, %s that fail twice and then work, %s poison, %s that reuse an id for another payload (seed %d)",
		grouped(len(p.sendings)), grouped(p.count(repeat)), grouped(p.count(flaky)),
		grouped(p.count(undecodable)+p.count(missingID)+p.count(closed)+p.count(hopeless)), grouped(p.count(conflicting)), p.seed)
}
