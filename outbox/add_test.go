package outbox

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
)

var testClaim = uuid.MustParse("0b3a4a5e-9e0e-4d0e-8a55-111111111111")

// storedRow is what the table holds of an effect.
type storedRow struct {
	Bucket       int16
	Ordered      bool
	ID           uuid.UUID
	Topic        string
	Key, Value   []byte
	HeaderKeys   [][]byte
	HeaderValues [][]byte
	Correlation  []byte
	Causation    []byte
}

// stored reads the outbox of a test in the order of adding.
func stored(t *testing.T, db *pgtest.DB) []storedRow {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), pgschema.Schema(db.Schema).SQL(
		`select bucket, ordered, id, topic, key, value, header_keys, header_values, correlation_id, causation_id from claimq.outbox order by seq`))
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedRow])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func newOutbox(t testing.TB, db *pgtest.DB, maxBytes int) *Outbox {
	t.Helper()
	o, err := New(Config{Schema: db.Schema, MaxBytes: maxBytes})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// inTx runs do in a transaction and commits it.
func inTx(t testing.TB, db *pgtest.DB, do func(ctx context.Context, tx pgx.Tx) error) {
	t.Helper()
	ctx := t.Context()
	err := pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return do(ctx, tx) })
	if err != nil {
		t.Fatal(err)
	}
}

// awkwardEffects are records that a careless way through text, JSON or null
// handling would change.
func awkwardEffects() []Effect {
	return []Effect{
		{Name: "null key and value", Topic: "t"},
		{Name: "empty key and value", Topic: "t", Key: []byte{}, Value: []byte{}},
		{Name: "binary", Topic: "t", Key: []byte{0, 0xff, 0xc3, 0x28}, Value: []byte("\x00{\"a\":\"\\u0000\"}\xed\xa0\x80")},
		{Name: "headers", Topic: "t", Key: []byte("k"), Headers: []kgo.RecordHeader{
			{Key: "a", Value: nil},
			{Key: "a", Value: []byte{}},
			{Key: "a", Value: []byte("NULL")},
			{Key: "", Value: []byte(`"},{\,`)},
			{Key: "\xff\x00{}", Value: []byte{0, 1, 2, 0xfe}},
			{Key: "a", Value: []byte("again")},
		}},
		{Name: "unordered", Topic: "t", Key: []byte("k"), Unordered: true},
		{Name: "all bytes", Topic: strings.Repeat("x", 249), Value: func() []byte {
			b := make([]byte, 256)
			for i := range b {
				b[i] = byte(i)
			}
			return b
		}()},
	}
}

func TestAddStoresEveryByteAsItWasGiven(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db, 0)
	cause := Cause{Claim: testClaim}
	effects := awkwardEffects()
	inTx(t, db, func(ctx context.Context, tx pgx.Tx) error {
		return o.Add(WithCause(ctx, cause), tx, effects...)
	})
	want := make([]storedRow, len(effects))
	for i, e := range effects {
		id := cause.EffectID(e.Name, e.Step)
		want[i] = storedRow{
			Bucket: bucketOf(e.Key, id), Ordered: !e.Unordered, ID: id, Topic: e.Topic, Key: e.Key, Value: e.Value,
			HeaderKeys: [][]byte{}, HeaderValues: [][]byte{},
		}
		for _, h := range e.Headers {
			want[i].HeaderKeys = append(want[i].HeaderKeys, []byte(h.Key))
			want[i].HeaderValues = append(want[i].HeaderValues, h.Value)
		}
	}
	// cmp tells nil from empty: null and empty are different records.
	if diff := cmp.Diff(want, stored(t, db)); diff != "" {
		t.Fatalf("stored effects differ (-given +stored):\n%s", diff)
	}
}

func TestAddCarriesCorrelationAndCausation(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db, 0)
	cause := Cause{Claim: testClaim, CorrelationID: "conversation\x00\"1\"", CausationID: "message-7"}
	own := []kgo.RecordHeader{{Key: HeaderCorrelation, Value: []byte("own")}, {Key: "x", Value: []byte("y")}}
	inTx(t, db, func(ctx context.Context, tx pgx.Tx) error {
		return o.Add(WithCause(ctx, cause), tx,
			Effect{Name: "plain", Topic: "t"},
			Effect{Name: "own", Topic: "t", Headers: own})
	})
	rows := stored(t, db)
	want := []storedRow{
		{Correlation: []byte(cause.CorrelationID), Causation: []byte("message-7"), HeaderKeys: [][]byte{}, HeaderValues: [][]byte{}},
		{
			Causation:  []byte("message-7"),
			HeaderKeys: [][]byte{[]byte(HeaderCorrelation), []byte("x")}, HeaderValues: [][]byte{[]byte("own"), []byte("y")},
		},
	}
	ignored := cmpopts.IgnoreFields(storedRow{}, "Bucket", "Ordered", "ID", "Topic")
	if diff := cmp.Diff(want, rows, ignored); diff != "" {
		t.Fatalf("stored rows differ (-want +got):\n%s", diff)
	}
}

func TestAddWritesNothingWhenTheTransactionRollsBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db, 0)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Add(WithCause(t.Context(), Cause{Claim: testClaim}), tx, Effect{Name: "a", Topic: "t"}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, db); len(got) != 0 {
		t.Fatalf("%d effects of a rolled back transaction are stored", len(got))
	}
}

func TestQueueAddsOneStatementForManyEffects(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db, 0)
	other := Cause{Claim: uuid.MustParse("0b3a4a5e-9e0e-4d0e-8a55-222222222222"), CorrelationID: "c"}
	var b pgx.Batch
	if err := o.Queue(&b, Cause{Claim: testClaim}, []Effect{{Name: "a", Topic: "t"}, {Name: "a", Step: 1, Topic: "t"}}); err != nil {
		t.Fatal(err)
	}
	if err := o.QueueAll(&b, []Caused{
		{Cause: Cause{Claim: testClaim}, Effect: Effect{Name: "b", Topic: "t"}},
		{Cause: other, Effect: Effect{Name: "b", Topic: "t"}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := o.Queue(&b, other, nil); err != nil {
		t.Fatal(err)
	}
	if err := o.QueueAll(&b, nil); err != nil {
		t.Fatal(err)
	}
	if b.Len() != 2 {
		t.Fatalf("%d statements were queued, want 2", b.Len())
	}
	inTx(t, db, func(ctx context.Context, tx pgx.Tx) error { return tx.SendBatch(ctx, &b).Close() })
	var got []uuid.UUID
	for _, row := range stored(t, db) {
		got = append(got, row.ID)
	}
	c := Cause{Claim: testClaim}
	want := []uuid.UUID{c.EffectID("a", 0), c.EffectID("a", 1), c.EffectID("b", 0), other.EffectID("b", 0)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("ids differ, or their order (-want +got):\n%s", diff)
	}
}

func TestRefusedEffectsAreNamedAndSendNothing(t *testing.T) {
	t.Parallel()
	claim := Cause{Claim: testClaim}
	tests := map[string]struct {
		cause  Cause
		effect []Effect
		reason error
		text   []string
	}{
		"too large": {
			claim,
			[]Effect{{Name: "invoice", Step: 3, Topic: "bills", Key: []byte("12"), Value: bytes.Repeat([]byte("x"), 90), Headers: []kgo.RecordHeader{{Key: "abc", Value: []byte("123456")}}}},
			ErrTooLarge,
			[]string{`"invoice"`, "step 3", `"bills"`, "101 bytes", "at most 100"},
		},
		"no topic":              {claim, []Effect{{Name: "a"}}, ErrNoTopic, []string{`"a"`}},
		"no topic has the name": {claim, []Effect{{Name: "a", Topic: "a\x00b"}}, ErrTopicName, []string{"249"}},
		"no claim and no id":    {Cause{}, []Effect{{Name: "a", Topic: "t"}}, ErrNoID, []string{`"a"`, `"t"`, "ID"}},
		"no name and no id":     {claim, []Effect{{Topic: "t"}}, ErrNoID, []string{`"t"`}},
		"negative step":         {claim, []Effect{{Name: "a", Step: -1, Topic: "t"}}, ErrNoID, []string{"-1"}},
		"the same name twice":   {claim, []Effect{{Name: "a", Topic: "t"}, {Name: "a", Topic: "u"}}, ErrSameID, []string{`"u"`, "Step"}},
		"the same own id twice": {Cause{}, []Effect{{ID: testClaim, Topic: "t"}, {ID: testClaim, Topic: "u"}}, ErrSameID, []string{`"u"`}},
	}
	o, err := New(Config{MaxBytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b pgx.Batch
			err := o.Queue(&b, test.cause, test.effect)
			var refused *EffectError
			if !errors.As(err, &refused) || !errors.Is(err, test.reason) {
				t.Fatalf("got %v, want an *EffectError with %v", err, test.reason)
			}
			for _, part := range test.text {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %s: %v", part, err)
				}
			}
			if b.Len() != 0 {
				t.Errorf("a refused effect was queued")
			}
		})
	}
}

func TestTheSizeLimitIsInclusiveAndLettersAreExempt(t *testing.T) {
	t.Parallel()
	o, err := New(Config{MaxBytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	var b pgx.Batch
	for _, e := range []Effect{
		{Name: "a", Topic: "t", Value: make([]byte, 100)},
		{Name: "a", Topic: "t", Value: make([]byte, 101), NoSizeLimit: true},
	} {
		if err := o.Queue(&b, Cause{Claim: testClaim}, []Effect{e}); err != nil {
			t.Errorf("%d bytes, NoSizeLimit %v: %v", len(e.Value), e.NoSizeLimit, err)
		}
	}
	if _, err := New(Config{MaxBytes: -1}); err == nil || !strings.Contains(err.Error(), "MaxBytes") {
		t.Errorf("a negative limit gives %v", err)
	}
}

// The ids are promised never to change: these are not to be updated.
func TestEffectIDsAreWhatTheyHaveAlwaysBeen(t *testing.T) {
	t.Parallel()
	c := Cause{Claim: testClaim, CorrelationID: "plays no part"}
	for _, known := range []struct {
		name string
		step int
		id   string
	}{
		{"order-confirmed", 0, "0e3aed16-ebf0-58b5-ad65-192852a7f955"},
		{"order-confirmed", 1, "44f5925a-6b5b-5b7b-8266-349272e50b3f"},
		{"", 0, "30222e86-7532-5611-bd2e-23bd01a58076"},
	} {
		if got := c.EffectID(known.name, known.step); got.String() != known.id {
			t.Errorf("%q step %d: %s, want %s", known.name, known.step, got, known.id)
		}
	}
}

func TestBucketsAgreeBetweenGoAndSQL(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, key := range [][]byte{nil, {}, []byte("k"), {0, 0xff}, bytes.Repeat([]byte("long"), 5000)} {
		var got int16
		err := db.Pool.QueryRow(t.Context(), pgschema.Schema(db.Schema).SQL(`select claimq.outbox_bucket($1, $2)`), key, testClaim).Scan(&got)
		if err != nil {
			t.Fatal(err)
		}
		if want := bucketOf(key, testClaim); got != want {
			t.Errorf("key %.20q: SQL says %d, Go says %d", key, got, want)
		}
	}
}

func TestCauseTravelsInTheContext(t *testing.T) {
	t.Parallel()
	if _, ok := CauseOf(t.Context()); ok {
		t.Error("a bare context carries a cause")
	}
	want := Cause{Claim: testClaim, CorrelationID: "a", CausationID: "b"}
	if got, ok := CauseOf(WithCause(t.Context(), want)); !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
}
