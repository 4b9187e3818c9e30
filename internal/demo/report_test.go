package demo

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/claimq/claimq/dlq"
)

func TestTheAccountAsPrinted(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	fabricate(1, 1000).account().Print(&out)
	const want = `The account, from the database and the topics:

  sent                          1,000  records acknowledged by Kafka
  distinct                        894  idempotency keys among them
  applied once                    889  one row each, the payload that was sent first
  repeats dropped                 100  same key and payload at other offsets
  retried                          10  failed, waited in the delay queue, then worked
  kept in order                     0  waited behind a failed order of their customer
  dead letters                     11  rows; 11 in the dead-letter topic
    conflict                        5  the id was used before for another payload
    undecodable                     2  not an order
    missing_id                      1  no idempotency key
    permanent                       2  the handler said that no attempt will work
    exhausted                       1  all attempts failed
  effects published               889  and 0 copies under the same id
  uncommitted at kill -9            3  orders or more, written by the killed consumer, done by the other one
  lost                              0
  doubled                           0
  messages a second                80  160 in 2.0 s, 1.0 s of it until the killed consumer's session ended
    in the busiest second          90

It holds: every order took effect once, and everything else is accounted for.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("printed differs (-want +got):\n%s", diff)
	}
}

func TestABrokenAccountSaysSoAndHowToRepeatIt(t *testing.T) {
	t.Parallel()
	a := fabricate(1, 1000).account()
	a.Broken = []string{"lost: one", "doubled: another"}
	a.Dead[dlq.Reason("of its own")] = 2
	var out bytes.Buffer
	a.Print(&out)
	for _, part := range []string{
		"BROKEN  lost: one\nBROKEN  doubled: another\n", "It does not hold.", "claimq demo --seed 1 --orders 1000\n", "of its own",
	} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in:\n%s", part, out.String())
		}
	}
	if strings.Contains(out.String(), "It holds") {
		t.Error("it says that it holds too")
	}
}

func TestTheAccountAsJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(fabricate(1, 1000).account())
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]any
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{"sent": 1000.0, "lost": 0.0, "doubled": 0.0, "broken": []any{}} {
		if diff := cmp.Diff(want, read[name]); diff != "" {
			t.Errorf("%s differs:\n%s", name, diff)
		}
	}
}
