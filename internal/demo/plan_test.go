package demo

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAPlanHasItsShares(t *testing.T) {
	t.Parallel()
	p := newPlan(42, DefaultOrders)
	got := map[kind]int{}
	for _, s := range p.sendings {
		got[s.kind]++
	}
	want := map[kind]int{
		good: 50_000 - 5_000 - 500 - 250 - 100 - 50 - 100 - 50, flaky: 500, repeat: 5_000, conflicting: 250,
		undecodable: 100, missingID: 50, closed: 100, hopeless: 50,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the mix differs (-want +got):\n%s", diff)
	}
}

func TestTheSameSeedMakesTheSamePlan(t *testing.T) {
	t.Parallel()
	values := func(seed uint64) (list []string) {
		for _, s := range newPlan(seed, 500).sendings {
			list = append(list, s.id+string(s.value))
		}
		return list
	}
	if diff := cmp.Diff(values(9), values(9)); diff != "" {
		t.Errorf("two plans of one seed differ:\n%s", diff)
	}
	if cmp.Equal(values(9), values(10)) {
		t.Error("two seeds made the same plan")
	}
}

// What compare takes for granted of every plan.
func TestInAnyPlanTheFirstOfAnIDDecides(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := newPlan(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(MinOrders, 3000).Draw(t, "orders"))
		firsts := map[string]*sending{}
		seen := map[kind]bool{}
		for i, s := range p.sendings {
			seen[s.kind] = true
			if s.partition < 0 || s.partition >= partitions {
				t.Fatalf("record %d: partition %d", i, s.partition)
			}
			first := firsts[s.id]
			switch s.kind {
			case missingID:
				if s.id != "" || len(s.record("t").Headers) != 0 {
					t.Fatalf("record %d is to have no id and has %q", i, s.id)
				}
				continue
			case repeat:
				if first == nil || !first.kind.applied() || !bytes.Equal(first.value, s.value) || first.customer != s.customer {
					t.Fatalf("record %d repeats nothing that stands before it", i)
				}
				if first.partition != s.partition && !first.roams {
					t.Fatalf("record %d: a copy in another partition is not noted", i)
				}
			case conflicting:
				if first == nil || !first.kind.applied() || bytes.Equal(first.value, s.value) || first.partition != s.partition {
					t.Fatalf("record %d is in no conflict with what stands before it in its partition", i)
				}
			default:
				if first != nil {
					t.Fatalf("record %d uses the id %q of an earlier one", i, s.id)
				}
				firsts[s.id] = s
			}
		}
		for k := good; k <= hopeless; k++ {
			if !seen[k] {
				t.Fatalf("the plan has none of kind %d", k)
			}
		}
	})
}

func TestPoisonIsNoOrder(t *testing.T) {
	t.Parallel()
	for _, s := range newPlan(1, 1000).sendings {
		_, err := decode(s.value)
		if (err != nil) != (s.kind == undecodable) {
			t.Errorf("%s, kind %d: decode says %v", s, s.kind, err)
		}
	}
}
