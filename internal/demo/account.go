package demo

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/claimq/claimq/dlq"
)

// An Account is what a run found, computed from the database and the topics.
type Account struct {
	Seed uint64 `json:"seed"`
	// Sent are the records that Kafka acknowledged, Distinct the ids among them.
	Sent     int `json:"sent"`
	Distinct int `json:"distinct"`
	// AppliedOnce are orders with exactly one row that holds what was sent.
	AppliedOnce int `json:"applied_once"`
	// RepeatsDropped are records of an id that is applied, which left no row and no
	// dead letter.
	RepeatsDropped int `json:"repeats_dropped"`
	// Retried are orders that were applied at a later attempt than their first, and
	// Waited those that failed at none and waited behind another one of their customer.
	Retried int `json:"retried"`
	Waited  int `json:"waited_in_order"`
	// Dead counts dead letters by reason, conflicts included.
	Dead map[dlq.Reason]int `json:"dead"`
	// Effects are the ids in the effects topic, EffectCopies further records of an id,
	// alike to the last byte: the topic is written at least once.
	Effects      int `json:"effects_published"`
	EffectCopies int `json:"effect_copies"`
	// DeadPublished are the letters in the dead-letter topic.
	DeadPublished int `json:"dead_letters_published"`
	// Lost are records that ought to have an effect and have neither that nor a
	// dead letter; Doubled are rows and effects beyond the first.
	Lost    int `json:"lost"`
	Doubled int `json:"doubled"`

	// KilledWith is how many orders the killed consumer had written and not committed,
	// at least: those of its transaction's newest flight.
	KilledWith int `json:"killed_with_uncommitted"`
	// Drained messages took Seconds from the first record of the backlog to the last
	// one's fate, with the wait for the killed consumer's session and for retries in
	// it; BusiestSecond is the most that any one second saw.
	Drained       int     `json:"drained"`
	Seconds       float64 `json:"seconds"`
	PerSecond     float64 `json:"messages_per_second"`
	BusiestSecond int     `json:"busiest_second"`
	// Outage is how long partitions of the killed consumer had no owner.
	Outage float64 `json:"session_wait_seconds"`

	// Broken names every invariant that does not hold; none when the run is good.
	Broken []string `json:"broken"`
}

// Holds reports whether every invariant holds.
func (a *Account) Holds() bool { return len(a.Broken) == 0 }

// measured is what only the run itself can tell.
type measured struct {
	killedWith int
	drained    int
	took       time.Duration
	busiest    int
	outage     time.Duration
}

// compare makes the account: what was found against what was sent.
func compare(p *plan, queue, effectsTopic string, e *evidence, m measured) *Account {
	c := &comparison{
		plan: p, evidence: e, effectsTopic: effectsTopic, queue: queue,
		account: &Account{
			Seed: p.seed, Sent: len(p.sendings), Dead: map[dlq.Reason]int{},
			KilledWith: m.killedWith, Drained: m.drained, Seconds: m.took.Seconds(), BusiestSecond: m.busiest, Outage: m.outage.Seconds(),
			Broken: []string{},
		},
	}
	if m.took > 0 {
		c.account.PerSecond = float64(m.drained) / m.took.Seconds()
	}
	c.index()
	c.compareRows()
	c.compareLetters()
	c.compareEffects()
	c.compareFed()
	c.compareLeft()
	c.count()
	return c.account
}

// A comparison is one run of compare.
type comparison struct {
	plan         *plan
	evidence     *evidence
	queue        string
	effectsTopic string
	account      *Account

	firsts map[string]*sending // by id: the record that makes the order's row, or dies
	rows   map[string][]*orderRow
	dead   map[place]*letterRow
}

// A place is where a record stands in the orders topic.
type place struct {
	partition int32
	offset    int64
}

func (s *sending) place() place { return place{s.partition, s.offset} }

// broken notes that an invariant does not hold: how often, and a few of the cases.
func (c *comparison) broken(what string, cases []string) {
	if len(cases) == 0 {
		return
	}
	const shown = 3
	text := fmt.Sprintf("%s: %s (%s", what, grouped(len(cases)), strings.Join(cases[:min(shown, len(cases))], ", "))
	if len(cases) > shown {
		text += ", …"
	}
	c.account.Broken = append(c.account.Broken, text+")")
}

func (c *comparison) index() {
	c.firsts = make(map[string]*sending, len(c.plan.sendings))
	for _, s := range c.plan.sendings {
		if _, known := c.firsts[s.id]; !known && s.id != "" {
			c.firsts[s.id] = s
		}
	}
	c.account.Distinct = len(c.firsts)
	c.rows = make(map[string][]*orderRow, len(c.evidence.orders))
	for i := range c.evidence.orders {
		row := &c.evidence.orders[i]
		c.rows[row.ID] = append(c.rows[row.ID], row)
	}
	c.dead = make(map[place]*letterRow, len(c.evidence.letters))
	for i := range c.evidence.letters {
		l := &c.evidence.letters[i]
		c.dead[place{l.Partition, l.Offset}] = l
	}
}

// compareRows holds the business table against the plan, by key and by payload.
func (c *comparison) compareRows() {
	var lost, doubled, wrong, foreign, attempts []string
	for _, s := range c.plan.sendings {
		if !s.kind.applied() {
			continue
		}
		rows := c.rows[s.id]
		if len(rows) == 0 {
			c.account.Lost++
			lost = append(lost, s.id)
			continue
		}
		if len(rows) > 1 {
			c.account.Doubled += len(rows) - 1
			doubled = append(doubled, s.id)
		}
		exact := true
		for _, row := range rows {
			exact = exact && row.holds(s)
		}
		if !exact {
			wrong = append(wrong, s.id)
		}
		if exact && len(rows) == 1 {
			c.account.AppliedOnce++
		}
		want := 1
		if s.kind == flaky {
			want += failsFirst
		}
		if rows[0].Attempt != want {
			attempts = append(attempts, fmt.Sprintf("%s at attempt %d, not %d", s.id, rows[0].Attempt, want))
		}
	}
	for i := range c.evidence.orders {
		row := &c.evidence.orders[i]
		if first := c.firsts[row.ID]; first == nil || !first.kind.applied() {
			foreign = append(foreign, row.ID)
		}
	}
	c.broken("lost: orders that were sent and have no row", lost)
	c.broken("doubled: orders with more than one row", doubled)
	c.broken("wrong: orders whose row is not what was sent first", wrong)
	c.broken("applied although nothing of the kind was to be applied", foreign)
	c.broken("applied at another attempt than the one that works", attempts)
}

// holds reports whether a row is what a sending asked for.
func (r *orderRow) holds(s *sending) bool {
	o, err := decode(s.value)
	return err == nil && bytes.Equal(r.Payload, s.value) && r.ID == o.ID && r.Customer == o.Customer && r.Cents == o.Cents
}

// compareLetters holds the dead letters against the plan, record by record.
func (c *comparison) compareLetters() {
	var missing, reasons, altered, repeated, foreign []string
	expected := map[place]bool{}
	for _, s := range c.plan.sendings {
		want := s.kind.reason()
		if want == "" {
			continue
		}
		expected[s.place()] = true
		l := c.dead[s.place()]
		switch {
		case l == nil:
			missing = append(missing, s.String())
			if len(c.rows[s.id]) == 0 {
				c.account.Lost++
			}
			continue
		case l.Reason != want:
			reasons = append(reasons, fmt.Sprintf("%s: %s, not %s", s, l.Reason, want))
		}
		if !bytes.Equal(l.Value, s.value) || string(l.Key) != s.customer {
			altered = append(altered, s.String())
		}
	}
	seen := map[place]bool{}
	for i := range c.evidence.letters {
		l := &c.evidence.letters[i]
		at := place{l.Partition, l.Offset}
		c.account.Dead[l.Reason]++
		if seen[at] {
			repeated = append(repeated, fmt.Sprintf("partition %d offset %d", l.Partition, l.Offset))
		}
		if seen[at] = true; !expected[at] {
			foreign = append(foreign, fmt.Sprintf("partition %d offset %d: %s", l.Partition, l.Offset, l.Reason))
		}
	}
	c.broken("not dead although nothing else is right for them", missing)
	c.broken("dead of another reason", reasons)
	c.broken("dead letters that are not the record byte for byte", altered)
	c.broken("more than one dead letter for a record", repeated)
	c.broken("dead although they were to be applied or dropped", foreign)
}

// String names a sending by its id, or by its place when it has none.
func (s *sending) String() string {
	if s.id != "" {
		return s.id
	}
	return fmt.Sprintf("partition %d offset %d", s.partition, s.offset)
}

// compareLeft looks for what is not finished.
func (c *comparison) compareLeft() {
	left := c.evidence.left
	for _, l := range []struct {
		what  string
		count int
	}{
		{"messages between the positions and the end of the topic", c.account.Sent - int(left.positions)},
		{"messages still in the delay queue", left.delayed},
		{"effects still in the outbox", left.pending},
		{"effects that were set aside", left.held},
	} {
		if l.count != 0 {
			c.account.Broken = append(c.account.Broken, fmt.Sprintf("%s: %s", l.what, grouped(l.count)))
		}
	}
}

// count counts what is no matter of right or wrong. A record of an applied id that
// has no row of its own and no letter was dropped: the positions are behind it.
func (c *comparison) count() {
	for _, s := range c.plan.sendings {
		rows := c.rows[s.id]
		if len(rows) > 0 && c.firsts[s.id] != s && c.dead[s.place()] == nil {
			c.account.RepeatsDropped++
		}
	}
	for i := range c.evidence.orders {
		switch row := &c.evidence.orders[i]; {
		case row.Attempt > 1:
			c.account.Retried++
		case row.Waited:
			c.account.Waited++
		}
	}
}
