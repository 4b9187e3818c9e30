package dedup

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

var ordersTopicID = [16]byte{1, 2, 3, 15: 9}

func identify(t *testing.T, rules Rules, record *kgo.Record) Identity {
	t.Helper()
	if err := rules.Validate(); err != nil {
		t.Fatal(err)
	}
	identity, err := rules.Identify("orders", record, ordersTopicID)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	chain := Rules{ID: []Source{Header("id"), JSON("id"), RecordKey()}}
	scoped := Rules{
		ID: []Source{Header("id")}, Tenant: []Source{Header("tenant"), JSON("tenant")}, Operation: []Source{Header("op"), Topic()}, Fingerprint: None(),
	}
	keyed := jsonRecord(`{}`)
	keyed.Key = []byte{0xff}
	for _, c := range []struct {
		name   string
		rules  Rules
		record *kgo.Record
		want   Identity
	}{
		{"first of the chain", chain, idRecord([]byte(`{"id":"j"}`), "id", "h"), Identity{ID: "h"}},
		{"an empty text is passed over", chain, idRecord([]byte(`{"id":"j"}`), "id", ""), Identity{ID: "j"}},
		{"last of the chain, not UTF-8", chain, keyed, Identity{ID: "\xff"}},
		{"white space is an id", chain, idRecord([]byte(`{"id":"j"}`), "id", " "), Identity{ID: " "}},
		{"case counts", chain, idRecord([]byte(`{}`), "id", "K"), Identity{ID: "K"}},
		{"no tenant, operation by topic", scoped, idRecord([]byte(`{}`), "id", "k"), Identity{ID: "k", Operation: new("orders")}},
		{"an empty tenant is a tenant", scoped, idRecord([]byte(`{"tenant":"j"}`), "id", "k", "tenant", ""), Identity{ID: "k", Tenant: new(""), Operation: new("orders")}},
		{"second tenant source", scoped, idRecord([]byte(`{"tenant":"j"}`), "id", "k", "op", "pay"), Identity{ID: "k", Tenant: new("j"), Operation: new("pay")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := identify(t, c.rules, c.record)
			want := c.want
			want.Queue = "orders"
			want.Fingerprint, want.FingerprintVersion = c.rules.Fingerprint.Sum(c.record.Value)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("-want +got\n%s", diff)
			}
		})
	}
}

// C08: what one record is to two queues are two identities.
func TestQueuesDoNotShareIDs(t *testing.T) {
	t.Parallel()
	rules := Rules{ID: []Source{Header("id")}}
	record := idRecord(nil, "id", "k")
	a, errA := rules.Identify("billing", record, ordersTopicID)
	b, errB := rules.Identify("shipping", record, ordersTopicID)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if a.Digest() == b.Digest() {
		t.Fatal("two queues share a digest")
	}
}

// C09: records without an id are never one another's repeats.
func TestRecordsWithoutAnIDAreRejected(t *testing.T) {
	t.Parallel()
	rules := Rules{ID: []Source{RecordKey(), Header("id")}}
	for _, record := range []*kgo.Record{idRecord([]byte("a")), idRecord([]byte("b"), "id", ""), nullHeader(idRecord([]byte("c")), "id")} {
		_, err := rules.Identify("orders", record, ordersTopicID)
		var missing *MissingIDError
		if !errors.As(err, &missing) {
			t.Fatalf("error is %T (%v), want *MissingIDError", err, err)
		}
		want := &MissingIDError{Queue: "orders", Topic: "orders", Partition: 3, Offset: 77, Tried: []string{"key", "header:id"}}
		if diff := cmp.Diff(want, missing); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
		for _, part := range []string{"queue orders", "orders[3]@77", "key, header:id"} {
			if !strings.Contains(err.Error(), part) {
				t.Fatalf("%q does not say %q", err, part)
			}
		}
	}
}

// C09, with the policy offset.
func TestRecordsWithoutAnIDAreIdentifiedByWhereTheyAre(t *testing.T) {
	t.Parallel()
	rules := Rules{ID: []Source{RecordKey()}, OnMissing: MissingOffset}
	first := identify(t, rules, idRecord([]byte("a")))
	if !first.FromOffset || first.ID != "offset:01020300-0000-0000-0000-000000000009/3/77" {
		t.Fatalf("%+v", first)
	}
	if again := identify(t, rules, idRecord([]byte("a"))); again.Digest() != first.Digest() {
		t.Fatal("one record at one place has two identities")
	}
	next, otherPartition := idRecord([]byte("a")), idRecord([]byte("a"))
	next.Offset++
	otherPartition.Partition++
	for name, record := range map[string]*kgo.Record{"offset": next, "partition": otherPartition} {
		if identify(t, rules, record).Digest() == first.Digest() {
			t.Errorf("another %s has the same identity", name)
		}
	}
	recreated, err := rules.Identify("orders", idRecord([]byte("a")), [16]byte{7})
	if err != nil || recreated.Digest() == first.Digest() {
		t.Errorf("a topic that was made again repeats the identities of the first (%v)", err)
	}
	withID := idRecord([]byte("a"))
	withID.Key = []byte("k")
	if identity := identify(t, rules, withID); identity.FromOffset || identity.ID != "k" {
		t.Errorf("the record's own id is not used: %+v", identity)
	}
}

func TestAnOffsetWithoutATopicIDIsNoIdentity(t *testing.T) {
	t.Parallel()
	_, err := Rules{OnMissing: MissingOffset}.Identify("orders", idRecord(nil), [16]byte{})
	var missing *MissingIDError
	if !errors.As(err, &missing) || !missing.NoTopicID || !strings.Contains(err.Error(), "id of its topic is not known") {
		t.Fatalf("error %v", err)
	}
}

func TestUndecodableRecordsNameTheRule(t *testing.T) {
	t.Parallel()
	broken := idRecord([]byte("{"), "id", "k")
	failing := Func("mine", func(*kgo.Record) (string, bool, error) { return "", false, errFailing })
	for _, c := range []struct {
		rule  string
		rules Rules
	}{
		{"id", Rules{ID: []Source{JSON("id"), Header("id")}}},
		{"id", Rules{ID: []Source{failing}}},
		{"id", Rules{ID: []Source{failingSource{}}}},
		{"tenant", Rules{ID: []Source{Header("id")}, Tenant: []Source{JSON("tenant")}}},
		{"operation", Rules{ID: []Source{Header("id")}, Operation: []Source{Envelope()}}},
	} {
		_, err := c.rules.Identify("orders", broken, ordersTopicID)
		var undecodable *UndecodableError
		if !errors.As(err, &undecodable) || undecodable.Rule != c.rule || !strings.HasPrefix(err.Error(), c.rule+" ") {
			t.Errorf("%s: error %v does not name the rule %s", c.rules, err, c.rule)
		}
	}
	if _, err := (Rules{ID: []Source{failing}}).Identify("orders", broken, ordersTopicID); !errors.Is(err, errFailing) {
		t.Errorf("the cause is lost: %v", err)
	}
}

var errFailing = errors.New("schema registry answers 404")

// failingSource is a source of another package, with an error of its own.
type failingSource struct{ foreignSource } //nolint:unused // makes it a Source

func (failingSource) String() string                         { return "failing" }
func (failingSource) Find(*kgo.Record) (string, bool, error) { return "", false, errFailing }

// A column of type text holds neither, and a tenant that was made storable could become another's.
func TestScopesThatPostgresCannotStoreAreUndecodable(t *testing.T) {
	t.Parallel()
	for _, tenant := range []string{"a\x00b", "\xff", "\xed\xa0\x80"} {
		record := idRecord(nil, "id", "k", "x", tenant)
		for rule, rules := range map[string]Rules{
			"tenant":    {ID: []Source{Header("id")}, Tenant: []Source{Header("x")}},
			"operation": {ID: []Source{Header("id")}, Operation: []Source{Header("x")}},
		} {
			_, err := rules.Identify("orders", record, ordersTopicID)
			var undecodable *UndecodableError
			if !errors.As(err, &undecodable) || undecodable.Rule != rule {
				t.Errorf("%s %q: error %v", rule, tenant, err)
			}
		}
	}
}

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	id := []Source{Header("id")}
	for _, c := range []struct {
		rules Rules
		want  []string
	}{
		{Rules{}, []string{"Rules.ID: no source is given"}},
		{Rules{ID: []Source{nil}}, []string{"Rules.ID[0]: the source is nil"}},
		{Rules{ID: []Source{Header("a"), Header("")}}, []string{"Rules.ID[1]: header"}},
		{Rules{ID: []Source{Const("x")}}, []string{"Rules.ID[0]: const:x is the same for every message"}},
		{Rules{ID: []Source{Header("a"), Topic()}}, []string{"Rules.ID[1]: topic is the same for every message"}},
		{Rules{ID: []Source{Join(Topic(), Const("x"))}}, []string{"Rules.ID[0]: join(topic,const:x) is the same for every message"}},
		{Rules{ID: []Source{Join(Header("a"))}}, []string{"Rules.ID[0]: join: has 1 parts"}},
		{Rules{ID: []Source{Join(Header("a"), nil)}}, []string{"Rules.ID[0]: join: part 2: the source is nil"}},
		{Rules{ID: []Source{Func("", nil)}}, []string{"Rules.ID[0]: func: the name is empty"}},
		{Rules{ID: []Source{Func("f", nil)}}, []string{`Rules.ID[0]: func "f": the function is nil`}},
		{Rules{ID: id, OnMissing: 7}, []string{"Rules.OnMissing: MissingPolicy(7) is unknown"}},
		{Rules{ID: id, Tenant: []Source{Const("")}, Operation: []Source{XML("/a[")}, Fingerprint: Fields()}, []string{"Rules.Tenant[0]", "Rules.Operation[0]", "Rules.Fingerprint"}},
	} {
		err := c.rules.Validate()
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one that says %q", err, want)
			}
		}
	}
	for _, rules := range []Rules{CommandEnvelope(), {OnMissing: MissingOffset}, {ID: []Source{Join(Topic(), RecordKey())}, Operation: []Source{Topic()}, Tenant: []Source{Const("eu")}}} {
		if err := rules.Validate(); err != nil {
			t.Errorf("%s: %v", rules, err)
		}
	}
}

func TestRulesTextChangesWithEachPartOfTheRule(t *testing.T) {
	t.Parallel()
	base := Rules{ID: []Source{Header("a"), Header("b")}, Tenant: []Source{Header("t")}}
	if want := "id(header:a,header:b) missing(reject) tenant(header:t) operation() fingerprint(raw)"; base.String() != want {
		t.Fatalf("%s, want %s", base, want)
	}
	texts := map[string]bool{base.String(): true}
	change := func(alter func(*Rules)) {
		t.Helper()
		changed := base
		alter(&changed)
		if texts[changed.String()] {
			t.Errorf("a change does not show: %s", changed)
		}
		texts[changed.String()] = true
	}
	change(func(r *Rules) { r.ID = []Source{Header("b"), Header("a")} })
	change(func(r *Rules) { r.ID = []Source{Join(Header("a"), Header("b"))} })
	change(func(r *Rules) { r.ID = []Source{Header("a,header:b")} })
	change(func(r *Rules) { r.ID = []Source{Header("a")} })
	change(func(r *Rules) { r.OnMissing = MissingOffset })
	change(func(r *Rules) { r.Tenant = nil })
	change(func(r *Rules) { r.Tenant, r.Operation = nil, r.Tenant })
	change(func(r *Rules) { r.Fingerprint = Fields("a") })
	change(func(r *Rules) { r.Fingerprint = Raw().Ignore("a") })
	change(func(r *Rules) { r.Fingerprint = None() })
}

func TestRulesOfOneTextIdentifyAlike(t *testing.T) {
	t.Parallel()
	a := Rules{ID: []Source{JSON("$.id")}, Fingerprint: Fields("b", "a")}
	b := Rules{ID: []Source{JSON("id")}, Fingerprint: Fields("$.a", "b", "a")}
	record := jsonRecord(`{"id":1,"a":2,"b":3}`)
	if a.String() != b.String() || identify(t, a, record) != identify(t, b, record) {
		t.Fatalf("%s and %s", a, b)
	}
}

// The value is checked once for all sources of a rule; what the second finds must not depend on what the first was.
func TestSeveralSourcesOfOneValueFindWhatEachFindsAlone(t *testing.T) {
	t.Parallel()
	sources := []Source{JSON("a"), JSON("b"), Envelope(), Header("h")}
	for _, value := range []string{`{"a":"1","b":2,"idempotency_key":"k"}`, `{"b":2}`, `{"a":{}}`, `[]`, `{`, ``, nested(maxDepth + 1)} {
		for _, first := range sources {
			for _, second := range sources {
				record := idRecord([]byte(value), "h", "x")
				var check jsonCheck
				_, _, _ = findIn(first, record, &check)
				got, gotFound, gotErr := findIn(second, record, &check)
				want, wantFound, wantErr := second.Find(record)
				if got != want || gotFound != wantFound || (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
					t.Errorf("%.40s: %s after %s finds %q (%v, %v), alone %q (%v, %v)", value, second, first, got, gotFound, gotErr, want, wantFound, wantErr)
				}
			}
		}
	}
}

func TestMissingPolicyReadsAsItIsWritten(t *testing.T) {
	t.Parallel()
	for _, policy := range []MissingPolicy{MissingReject, MissingOffset} {
		if again, err := ParseMissingPolicy(policy.String()); err != nil || again != policy {
			t.Errorf("%s is read as %s (%v)", policy, again, err)
		}
	}
	if _, err := ParseMissingPolicy("ofset"); err == nil || !strings.Contains(err.Error(), `did you mean "offset"`) {
		t.Errorf("error %v", err)
	}
}

func TestCommandEnvelope(t *testing.T) {
	t.Parallel()
	rules := CommandEnvelope()
	command := func(value string) Identity { return identify(t, rules, jsonRecord(value)) }
	first := command(`{"idempotency_key":"k","tool":"refund","args":{"id":1,"sum":10},"session_id":"s","step_index":3,"tenant":"a","created_at":"2025-01-01T00:00:00Z"}`)
	if diff := cmp.Diff(Identity{
		Queue: "orders", ID: "k", Tenant: new("a"), Operation: new("refund"), Fingerprint: first.Fingerprint, FingerprintVersion: Fields("args").Version(),
	}, first); diff != "" {
		t.Fatalf("-want +got\n%s", diff)
	}
	resumed := command(`{"tool":"refund","tenant":"a","args":{"sum":10.0,"id":1},"session_id":"s2","step_index":9,"idempotency_key":"k","created_at":"2025-01-02T00:00:00Z"}`)
	if resumed.Digest() != first.Digest() || resumed.Fingerprint != first.Fingerprint {
		t.Error("a resumed session's command is another command")
	}
	other := command(`{"idempotency_key":"k","tool":"refund","args":{"id":1,"sum":11},"tenant":"a"}`)
	if other.Digest() != first.Digest() || other.Fingerprint == first.Fingerprint {
		t.Error("a key that is used for other arguments is no conflict")
	}
	for name, value := range map[string]string{
		"tenant":       `{"idempotency_key":"k","tool":"refund","args":{},"tenant":"b"}`,
		"no tenant":    `{"idempotency_key":"k","tool":"refund","args":{}}`,
		"empty tenant": `{"idempotency_key":"k","tool":"refund","args":{},"tenant":""}`,
		"tool":         `{"idempotency_key":"k","tool":"charge","args":{},"tenant":"a"}`,
		"key":          `{"idempotency_key":"l","tool":"refund","args":{},"tenant":"a"}`,
	} {
		if command(value).Digest() == first.Digest() {
			t.Errorf("another %s has the same identity", name)
		}
	}
}

func TestIdentifyIsAFunctionOfTheRecord(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rules := Rules{ID: []Source{anySource().Draw(t, "source")}, OnMissing: MissingOffset, Fingerprint: anyFingerprint().Draw(t, "fingerprint")}
		value := spelling(t, anyJSON(2).Draw(t, "value"))
		record := idRecord([]byte(value), "a", rapid.String().Draw(t, "header"))
		first, errFirst := rules.Identify("orders", record, ordersTopicID)
		again, errAgain := rules.Identify("orders", record, ordersTopicID)
		if first != again || (errFirst == nil) != (errAgain == nil) {
			t.Fatalf("%+v (%v), then %+v (%v)", first, errFirst, again, errAgain)
		}
		if errFirst == nil && first.ID == "" {
			t.Fatal("an identity with an empty id")
		}
	})
}
