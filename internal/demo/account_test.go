package demo

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/outbox"
)

func TestTheAccountOfARunWithoutFaultHolds(t *testing.T) {
	t.Parallel()
	f := fabricate(1, 1000)
	got := f.account()
	want := &Account{
		Seed: 1, Sent: 1000, Distinct: 1000 - 100 - 5 - 1, AppliedOnce: 1000 - 100 - 5 - 2 - 1 - 2 - 1,
		RepeatsDropped: 100, Retried: 10,
		Dead: map[dlq.Reason]int{dlq.Conflict: 5, dlq.Undecodable: 2, dlq.MissingID: 1, dlq.Permanent: 2, dlq.Exhausted: 1},

		Effects: 889, DeadPublished: 11,
		KilledWith: 3, Drained: 160, Seconds: 2, PerSecond: 80, BusiestSecond: 90, Outage: 1,
		Broken: []string{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the account differs (-want +got):\n%s", diff)
	}
	if !got.Holds() {
		t.Error("it does not hold")
	}
}

func TestAnyMixWithoutFaultHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := fabricate(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(MinOrders, 2000).Draw(t, "orders"))
		a := f.account()
		if !a.Holds() {
			t.Fatalf("broken: %q", a.Broken)
		}
		if sum := a.AppliedOnce + a.RepeatsDropped + sum(a.Dead); sum != a.Sent {
			t.Fatalf("applied %d + dropped %d + dead %d = %d, and %d were sent", a.AppliedOnce, a.RepeatsDropped, sum-a.AppliedOnce-a.RepeatsDropped, sum, a.Sent)
		}
	})
}

// Each kind of fault that the demo is to find, made in the evidence of a good run.
func TestTheAccountNamesWhatIsBroken(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		fault   func(f *fabricated)
		broken  []string // what each entry of Broken begins with
		lost    int
		doubled int
	}{
		"an order has no row": {
			fault: func(f *fabricated) {
				i := f.row(f.sending(good).id)
				f.evidence.orders = slices.Delete(f.evidence.orders, i, i+1)
			},
			broken: []string{"lost: orders", "effects of orders that were not applied"}, lost: 1, doubled: 1,
		},
		"an order has neither row nor effect": {
			fault: func(f *fabricated) {
				id := f.sending(flaky).id
				i, j := f.row(id), f.effect(id)
				f.evidence.orders = slices.Delete(f.evidence.orders, i, i+1)
				f.evidence.effects = slices.Delete(f.evidence.effects, j, j+1)
			},
			broken: []string{"lost: orders"}, lost: 1,
		},
		"an order has two rows": {
			fault: func(f *fabricated) {
				f.evidence.orders = append(f.evidence.orders, f.evidence.orders[f.row(f.sending(repeat).id)])
			},
			broken: []string{"doubled: orders"}, doubled: 1,
		},
		"a row holds the payload of a conflict": {
			fault: func(f *fabricated) {
				s := f.sending(conflicting)
				f.evidence.orders[f.row(s.id)].Payload = s.value
			},
			broken: []string{"wrong: orders"},
		},
		"a row's columns are not its payload's": {
			fault:  func(f *fabricated) { f.evidence.orders[f.row(f.sending(good).id)].Cents++ },
			broken: []string{"wrong: orders"},
		},
		"a row of an order that nobody sent": {
			fault: func(f *fabricated) {
				f.evidence.orders = append(f.evidence.orders, orderRow{ID: "order-of-nobody", Attempt: 1})
			},
			broken: []string{"applied although", "lost effects"}, lost: 1,
		},
		"an order whose account is closed is applied": {
			fault: func(f *fabricated) {
				s := f.sending(closed)
				f.evidence.orders = append(f.evidence.orders, orderRow{ID: s.id, Payload: s.value, Attempt: 1})
				i := f.letter(s)
				f.evidence.letters = slices.Delete(f.evidence.letters, i, i+1)
				f.evidence.fed = slices.Delete(f.evidence.fed, i, i+1)
			},
			broken: []string{"applied although", "not dead", "lost effects"}, lost: 1,
		},
		"an order that fails twice worked at once": {
			fault:  func(f *fabricated) { f.evidence.orders[f.row(f.sending(flaky).id)].Attempt = 1 },
			broken: []string{"applied at another attempt"},
		},
		"a good order was tried twice": {
			fault:  func(f *fabricated) { f.evidence.orders[f.row(f.sending(good).id)].Attempt = 2 },
			broken: []string{"applied at another attempt"},
		},
		"a poison record has no dead letter": {
			fault: func(f *fabricated) {
				i := f.letter(f.sending(undecodable))
				f.evidence.letters = slices.Delete(f.evidence.letters, i, i+1)
			},
			broken: []string{"not dead", "records of the dead-letter topic without"}, lost: 1,
		},
		"a conflict was dropped like a repeat": {
			fault: func(f *fabricated) {
				i := f.letter(f.sending(conflicting))
				f.evidence.letters = slices.Delete(f.evidence.letters, i, i+1)
				f.evidence.fed = slices.Delete(f.evidence.fed, i, i+1)
			},
			broken: []string{"not dead"},
		},
		"a dead letter has another reason": {
			fault: func(f *fabricated) {
				i := f.letter(f.sending(hopeless))
				f.evidence.letters[i].Reason = dlq.Permanent
				f.evidence.fed[i].Headers[1].Value = []byte(dlq.Permanent)
			},
			broken: []string{"dead of another reason"},
		},
		"a dead letter lost a byte": {
			fault: func(f *fabricated) {
				l := &f.evidence.letters[f.letter(f.sending(undecodable))]
				l.Value = l.Value[:len(l.Value)-1]
			},
			broken: []string{"dead letters that are not the record", "records of the dead-letter topic that are not their letter"},
		},
		"a record has two dead letters": {
			fault: func(f *fabricated) {
				i := f.letter(f.sending(missingID))
				l := f.evidence.letters[i]
				l.ID = uuid.New()
				fed := copied(f.evidence.fed[i])
				fed.Headers[0].Value = []byte(l.ID.String())
				f.evidence.letters, f.evidence.fed = append(f.evidence.letters, l), append(f.evidence.fed, fed)
			},
			broken: []string{"more than one dead letter"},
		},
		"a repeat is dead": {
			fault: func(f *fabricated) {
				s := f.sending(repeat)
				l := letterRow{ID: uuid.New(), Partition: s.partition, Offset: s.offset, Reason: dlq.Exhausted, Key: []byte(s.customer), Value: s.value}
				f.evidence.letters = append(f.evidence.letters, l)
				f.evidence.fed = append(f.evidence.fed, &kgo.Record{Key: l.Key, Value: l.Value, Headers: []kgo.RecordHeader{
					{Key: dlq.HeaderLetterID, Value: []byte(l.ID.String())}, {Key: dlq.HeaderReason, Value: []byte(l.Reason)},
				}})
			},
			broken: []string{"dead although"},
		},
		"an effect is missing": {
			fault: func(f *fabricated) {
				i := f.effect(f.sending(good).id)
				f.evidence.effects = slices.Delete(f.evidence.effects, i, i+1)
			},
			broken: []string{"lost effects"}, lost: 1,
		},
		"an effect is there twice under two ids": {
			fault: func(f *fabricated) {
				again := copied(f.evidence.effects[f.effect(f.sending(good).id)])
				setHeader(again, outbox.HeaderID, uuid.NewString())
				f.evidence.effects = append(f.evidence.effects, again)
			},
			broken: []string{"effects of orders that were not applied"}, doubled: 1,
		},
		"a copy of an effect differs": {
			fault: func(f *fabricated) {
				again := copied(f.evidence.effects[f.effect(f.sending(good).id)])
				again.Value[0] ^= 1
				f.evidence.effects = append(f.evidence.effects, again)
			},
			broken: []string{"doubled effects"}, doubled: 1,
		},
		"a copy of an effect is in another partition": {
			fault: func(f *fabricated) {
				again := copied(f.evidence.effects[f.effect(f.sending(good).id)])
				again.Partition++
				f.evidence.effects = append(f.evidence.effects, again)
			},
			broken: []string{"doubled effects"}, doubled: 1,
		},
		"an effect says another amount": {
			fault: func(f *fabricated) {
				r := f.evidence.effects[f.effect(f.sending(good).id)]
				r.Value = []byte(strings.Replace(string(r.Value), `"cents":`, `"cents":9`, 1))
			},
			broken: []string{"effects that are not what their order says"},
		},
		"an effect lost its header": {
			fault: func(f *fabricated) {
				r := f.evidence.effects[f.effect(f.sending(good).id)]
				r.Headers = r.Headers[1:]
			},
			broken: []string{"effects that are not what their order says"},
		},
		"an effect has no id": {
			fault: func(f *fabricated) {
				f.evidence.effects = append(f.evidence.effects, &kgo.Record{Key: []byte("customer-0")})
			},
			broken: []string{"effects without an id"},
		},
		"two effects of a customer changed places": {
			fault: func(f *fabricated) {
				i, j := f.neighbours()
				f.evidence.effects[i], f.evidence.effects[j] = f.evidence.effects[j], f.evidence.effects[i]
			},
			broken: []string{"effects of a customer out of the order"},
		},
		"a dead letter is not in its topic": {
			fault:  func(f *fabricated) { f.evidence.fed = f.evidence.fed[1:] },
			broken: []string{"dead letters that are not in the dead-letter topic"},
		},
		"the position is short of the end": {
			fault:  func(f *fabricated) { f.evidence.left.positions-- },
			broken: []string{"messages between the positions and the end"},
		},
		"an order is still delayed": {
			fault:  func(f *fabricated) { f.evidence.left.delayed = 1 },
			broken: []string{"messages still in the delay queue"},
		},
		"effects are still in the outbox": {
			fault:  func(f *fabricated) { f.evidence.left.pending, f.evidence.left.held = 2, 1 },
			broken: []string{"effects still in the outbox", "effects that were set aside"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fabricate(5, 1000)
			c.fault(f)
			a := f.account()
			if a.Holds() {
				t.Fatal("the account holds")
			}
			for _, broken := range a.Broken {
				if !slices.ContainsFunc(c.broken, func(prefix string) bool { return strings.HasPrefix(broken, prefix) }) {
					t.Errorf("named without being broken: %s", broken)
				}
			}
			for _, prefix := range c.broken {
				if !slices.ContainsFunc(a.Broken, func(broken string) bool { return strings.HasPrefix(broken, prefix) }) {
					t.Errorf("not named: %s…; named is %q", prefix, a.Broken)
				}
			}
			if a.Lost != c.lost || a.Doubled != c.doubled {
				t.Errorf("lost %d, doubled %d; want %d, %d", a.Lost, a.Doubled, c.lost, c.doubled)
			}
		})
	}
}

// neighbours are two effects of one customer, the second sent later.
func (f *fabricated) neighbours() (earlier, later int) {
	roams := map[string]bool{}
	for _, s := range f.plan.sendings {
		if s.roams {
			roams[effectID(testQueue, s.id).String()] = true
		}
	}
	last := map[string]int{}
	for i, r := range f.evidence.effects {
		if id, _ := header(r, outbox.HeaderID); roams[id] {
			continue
		}
		if before, ok := last[string(r.Key)]; ok {
			return before, i
		}
		last[string(r.Key)] = i
	}
	panic("no customer has two orders")
}

func setHeader(r *kgo.Record, name, value string) {
	for i, h := range r.Headers {
		if h.Key == name {
			r.Headers[i].Value = []byte(value)
		}
	}
}

func TestCopiesOfAnEffectThatAreAlikeAreCountedAndRight(t *testing.T) {
	t.Parallel()
	f := fabricate(3, 500)
	f.evidence.effects = append(f.evidence.effects, copied(f.evidence.effects[0]), copied(f.evidence.effects[7]), copied(f.evidence.effects[0]))
	a := f.account()
	if !a.Holds() || a.EffectCopies != 3 || a.Doubled != 0 {
		t.Errorf("copies %d, doubled %d, broken %q; want 3, 0 and none", a.EffectCopies, a.Doubled, a.Broken)
	}
}

func TestABrokenInvariantShowsAFewCasesOfMany(t *testing.T) {
	t.Parallel()
	f := fabricate(3, 500)
	f.evidence.orders = f.evidence.orders[5:]
	f.evidence.effects = f.evidence.effects[5:]
	a := f.account()
	if len(a.Broken) != 1 || a.Lost != 5 || !strings.HasPrefix(a.Broken[0], "lost: orders that were sent and have no row: 5 (order-") || !strings.HasSuffix(a.Broken[0], ", …)") {
		t.Errorf("broken %q, lost %d", a.Broken, a.Lost)
	}
}
