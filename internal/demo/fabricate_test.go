package demo

import (
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/outbox"
)

const (
	testQueue   = "orders"
	testEffects = "orders.confirmed"
)

// fabricated is a plan whose records have their offsets, and the evidence of a run
// in which everything went right. Tests break one thing in it.
type fabricated struct {
	plan     *plan
	evidence *evidence
}

func fabricate(seed uint64, orders int) *fabricated {
	f := &fabricated{plan: newPlan(seed, orders), evidence: &evidence{}}
	next := map[int32]int64{}
	effects := map[int32]int64{}
	e := f.evidence
	for _, s := range f.plan.sendings {
		s.offset = next[s.partition]
		next[s.partition]++
		switch reason := s.kind.reason(); {
		case s.kind.applied():
			o, err := decode(s.value)
			if err != nil {
				panic(err)
			}
			row := orderRow{ID: o.ID, Customer: o.Customer, Cents: o.Cents, Payload: s.value, Attempt: 1}
			if s.kind == flaky {
				row.Attempt, row.Waited = 1+failsFirst, true
			}
			e.orders = append(e.orders, row)
			effect := o.effect(testEffects)
			partition := partitionOf(o.Customer)
			e.effects = append(e.effects, &kgo.Record{
				Topic: testEffects, Partition: partition, Offset: effects[partition], Key: effect.Key, Value: effect.Value,
				Headers: append(effect.Headers, kgo.RecordHeader{Key: outbox.HeaderID, Value: []byte(effectID(testQueue, o.ID).String())}),
			})
			effects[partition]++
		case reason != "":
			l := letterRow{ID: uuid.New(), Partition: s.partition, Offset: s.offset, Reason: reason, Key: []byte(s.customer), Value: s.value}
			e.letters = append(e.letters, l)
			e.fed = append(e.fed, &kgo.Record{
				Key: l.Key, Value: l.Value,
				Headers: []kgo.RecordHeader{
					{Key: dlq.HeaderLetterID, Value: []byte(l.ID.String())},
					{Key: dlq.HeaderReason, Value: []byte(reason)},
				},
			})
		}
	}
	e.left = progress{positions: int64(len(f.plan.sendings)), owners: 1}
	return f
}

func (f *fabricated) account() *Account {
	return compare(f.plan, testQueue, testEffects, f.evidence, measured{killedWith: 3, drained: 160, took: 2 * time.Second, busiest: 90, outage: time.Second})
}

// sending returns the first record of a kind.
func (f *fabricated) sending(k kind) *sending {
	for _, s := range f.plan.sendings {
		if s.kind == k {
			return s
		}
	}
	panic("the plan has no such kind")
}

// row is the index of an order's row.
func (f *fabricated) row(id string) int {
	for i := range f.evidence.orders {
		if f.evidence.orders[i].ID == id {
			return i
		}
	}
	panic("no row of " + id)
}

// effect is the index of an order's effect.
func (f *fabricated) effect(id string) int {
	want := effectID(testQueue, id).String()
	for i, r := range f.evidence.effects {
		if value, _ := header(r, outbox.HeaderID); value == want {
			return i
		}
	}
	panic("no effect of " + id)
}

// letter is the index of a record's dead letter, which is also that of its fed record.
func (f *fabricated) letter(s *sending) int {
	for i, l := range f.evidence.letters {
		if l.Partition == s.partition && l.Offset == s.offset {
			return i
		}
	}
	panic("no letter of " + s.String())
}

// copied returns a record that can be changed without changing the other.
func copied(r *kgo.Record) *kgo.Record {
	c := *r
	c.Key, c.Value = append([]byte(nil), r.Key...), append([]byte(nil), r.Value...)
	c.Headers = append([]kgo.RecordHeader(nil), r.Headers...)
	return &c
}
