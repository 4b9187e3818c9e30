package demo

import (
	"bytes"
	"fmt"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/outbox"
)

// compareEffects holds the effects topic against the rows: an effect for each
// applied order, none without one, all copies of an id alike, and the customers'
// orders confirmed in the order in which they were sent.
func (c *comparison) compareEffects() {
	first, different, nameless := byID(c.evidence.effects, outbox.HeaderID)
	c.account.Effects = len(first)
	c.account.EffectCopies = len(c.evidence.effects) - len(first) - len(nameless)
	c.account.Doubled += len(different)
	var missing, altered []string
	expected := make(map[string]*sending, len(c.rows))
	for id := range c.rows {
		key := effectID(c.queue, id).String()
		expected[key] = c.firsts[id]
		record := first[key]
		if record == nil {
			c.account.Lost++
			missing = append(missing, id)
			continue
		}
		if s := c.firsts[id]; s != nil && s.kind.applied() && !confirms(record, s, c.effectsTopic) {
			altered = append(altered, id)
		}
	}
	var foreign []string
	for key := range first {
		if _, known := expected[key]; !known {
			foreign = append(foreign, "effect "+key)
		}
	}
	c.account.Doubled += len(foreign)
	c.broken("lost effects: orders that were applied and are not in the effects topic", missing)
	c.broken("effects of orders that were not applied", foreign)
	c.broken("doubled effects: records of one effect id that differ", different)
	c.broken("effects without an id", nameless)
	c.broken("effects that are not what their order says", altered)
	c.broken("effects of a customer out of the order of sending", c.outOfOrder(expected))
}

// confirms reports whether a record is the effect of a sending, byte for byte.
func confirms(r *kgo.Record, s *sending, topic string) bool {
	o, err := decode(s.value)
	if err != nil {
		return false
	}
	want := o.effect(topic)
	if !bytes.Equal(r.Key, want.Key) || !bytes.Equal(r.Value, want.Value) {
		return false
	}
	for _, h := range want.Headers {
		if value, ok := header(r, h.Key); !ok || value != string(h.Value) {
			return false
		}
	}
	return true
}

// outOfOrder returns the orders whose first effect comes after the effect of an
// order that their customer sent later.
func (c *comparison) outOfOrder(expected map[string]*sending) (cases []string) {
	sent := make(map[*sending]int, len(c.plan.sendings))
	for i, s := range c.plan.sendings {
		sent[s] = i
	}
	latest, seen := map[string]int{}, map[string]bool{}
	for _, r := range c.evidence.effects {
		id, _ := header(r, outbox.HeaderID)
		s := expected[id]
		if s == nil || s.roams || seen[id] {
			continue
		}
		seen[id] = true
		at := sent[s]
		if before, ok := latest[s.customer]; ok && before > at {
			cases = append(cases, s.id)
			continue
		}
		latest[s.customer] = at
	}
	return cases
}

// compareFed holds the dead-letter topic against the dead letters.
func (c *comparison) compareFed() {
	first, different, nameless := byID(c.evidence.fed, dlq.HeaderLetterID)
	c.account.DeadPublished = len(first)
	var missing, altered, foreign []string
	known := make(map[string]bool, len(c.evidence.letters))
	for i := range c.evidence.letters {
		l := &c.evidence.letters[i]
		key := l.ID.String()
		known[key] = true
		switch r := first[key]; {
		case r == nil:
			missing = append(missing, "letter "+key)
		default:
			if reason, _ := header(r, dlq.HeaderReason); reason != string(l.Reason) || !bytes.Equal(r.Value, l.Value) || !bytes.Equal(r.Key, l.Key) {
				altered = append(altered, "letter "+key)
			}
		}
	}
	for key := range first {
		if !known[key] {
			foreign = append(foreign, "letter "+key)
		}
	}
	c.broken("dead letters that are not in the dead-letter topic", missing)
	c.broken("records of the dead-letter topic without a dead letter", foreign)
	c.broken("records of one dead letter that differ", different)
	c.broken("records of the dead-letter topic without an id", nameless)
	c.broken("records of the dead-letter topic that are not their letter", altered)
}

// byID returns the first record of each id that a header holds, the ids that have
// records which differ, and the places of records without an id.
func byID(records []*kgo.Record, name string) (first map[string]*kgo.Record, different, nameless []string) {
	first = make(map[string]*kgo.Record, len(records))
	told := map[string]bool{}
	for _, r := range records {
		id, ok := header(r, name)
		if _, err := uuid.Parse(id); !ok || err != nil {
			nameless = append(nameless, fmt.Sprintf("partition %d offset %d", r.Partition, r.Offset))
			continue
		}
		known := first[id]
		if known == nil {
			first[id] = r
			continue
		}
		if !alike(known, r) && !told[id] {
			told[id] = true
			different = append(different, "effect "+id)
		}
	}
	return first, different, nameless
}

// alike reports whether two records hold the same, and would go to one partition.
func alike(a, b *kgo.Record) bool {
	if a.Partition != b.Partition || !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i, h := range a.Headers {
		if h.Key != b.Headers[i].Key || !bytes.Equal(h.Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}

// header returns the last header of a name.
func header(r *kgo.Record, name string) (value string, ok bool) {
	for _, h := range r.Headers {
		if h.Key == name {
			value, ok = string(h.Value), true
		}
	}
	return value, ok
}
