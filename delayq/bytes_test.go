package delayq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/delayq"
)

// vectors are bytes that Postgres stores as no text, and the ones that are easily
// taken for one another (CASES C15).
var vectors = [][]byte{
	nil, {}, {0}, {0xC3, 0x28}, []byte(`{"a":"\u0000"}`), []byte(`"\ud800"`), {0xED, 0xA0, 0x80}, {0xFF, 0xFE}, []byte("\\x41"), []byte("plain"),
}

// sameRecord compares records byte for byte; nil and empty differ.
var sameRecord = cmp.Options{
	cmp.Comparer(func(a, b kgo.RecordAttrs) bool { return a == b }),
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
	cmpopts.IgnoreFields(kgo.Record{}, "Context"),
}

func TestEveryByteComesBackAfterAFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var items []*delayq.Item
	for _, k := range vectors {
		for _, v := range vectors {
			it := w.item(delayq.Failed, uuid.Nil)
			it.Record.Key, it.Record.Value = k, v
			for _, hk := range vectors {
				it.Record.Headers = append(it.Record.Headers, kgo.RecordHeader{Key: string(hk), Value: v}, kgo.RecordHeader{Key: string(hk), Value: k})
			}
			it.ErrorClass, it.ErrorMessage = string(k), string(v)
			it.Shown, it.InterruptedWhy = string(v), string(k)
			items = append(items, it)
		}
	}
	w.put(items...)
	got := map[uuid.UUID]*delayq.Item{}
	for _, run := range w.lease() {
		got[run.Items[0].ID] = run.Items[0]
		// The second failure has the same texts to store.
		failed := run.Items[0].Record
		w.must(w.finish(run, delayq.Verdict{Outcome: delayq.Retry, Class: string(failed.Key), Message: string(failed.Value)}))
	}
	if len(got) != len(items) {
		t.Fatalf("%d items came back of %d", len(got), len(items))
	}
	for _, it := range items {
		if diff := cmp.Diff(it.Record, got[it.ID].Record, sameRecord); diff != "" {
			t.Errorf("the record changed in the delay queue (-stored +handed out):\n%s", diff)
		}
	}
	if shown := get[string](w, `select error_message from claimq.delayed where record_value = '\x00' limit 1`); shown != `\x00` {
		t.Errorf("an error text of one NUL is kept as %q", shown)
	}
	if shown := get[string](w, `select error_class from claimq.delayed where record_key = '\xC328' limit 1`); shown != `\xc3(` {
		t.Errorf("an error class that is not UTF-8 is kept as %q", shown)
	}
}

func TestEveryColumnComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	empty, tenant := "", "tenant"
	it := w.item(delayq.Replay, key("k"))
	it.ID, it.OrderPos = uuid.New(), 4711
	it.Starts, it.Attempts, it.Crashes, it.Interrupted, it.InterruptedWhy = 9, 2, 3, 4, "shutdown"
	it.Fingerprint, it.FingerprintVersion = uuid.New(), 2
	it.Tenant, it.Operation, it.Shown = &tenant, &empty, "order-7"
	it.ErrorClass, it.ErrorMessage = "class", "message"
	it.ReplayID, it.ReplayCount = uuid.NullUUID{UUID: uuid.New(), Valid: true}, 5
	it.FirstSeen = time.Date(2020, 2, 29, 1, 2, 3, 4000, time.UTC)
	scheduled := &delayq.Item{
		Queue: w.queue, Kind: delayq.Scheduled, DueAt: time.Now().Add(-time.Second).Truncate(time.Microsecond),
		Record: &kgo.Record{Topic: "orders", LeaderEpoch: -1},
	}
	w.put(it, scheduled)
	got := map[uuid.UUID]*delayq.Item{}
	for _, run := range w.lease() {
		got[run.Items[0].ID] = run.Items[0]
	}
	same := cmp.Options{sameRecord, cmpopts.IgnoreFields(delayq.Item{}, "Age", "DueIn", "Starts")}
	if diff := cmp.Diff(it, got[it.ID], same); diff != "" {
		t.Errorf("an item from Kafka (-stored +handed out):\n%s", diff)
	}
	want := *scheduled
	want.FirstSeen = got[scheduled.ID].FirstSeen
	if diff := cmp.Diff(&want, got[scheduled.ID], same); diff != "" {
		t.Errorf("an item from elsewhere (-stored +handed out):\n%s", diff)
	}
	if got[it.ID].Starts != 10 {
		t.Errorf("starts %d, want the one that this is added to 9", got[it.ID].Starts)
	}
	if age := got[it.ID].Age; age <= 0 || age > time.Minute {
		t.Errorf("age %v, want the time since the item was stored", age)
	}
}

func TestRecordsOfOneStatementKeepTheirOwnHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rapid.Check(t, func(rt *rapid.T) {
		w.exec(`delete from claimq.delayed`)
		w.exec(`delete from claimq.delayed_keys`)
		var items []*delayq.Item
		for n := rapid.IntRange(1, 8).Draw(rt, "items"); n > 0; n-- {
			it := w.item(delayq.Failed, uuid.Nil)
			it.Record.Headers = rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) kgo.RecordHeader {
				return kgo.RecordHeader{Key: string(rapid.SampledFrom(vectors).Draw(rt, "header")), Value: rapid.SampledFrom(vectors).Draw(rt, "value")}
			}), 0, 5).Draw(rt, fmt.Sprintf("headers of %d", n))
			if len(it.Record.Headers) == 0 {
				it.Record.Headers = nil
			}
			items = append(items, it)
		}
		w.put(items...)
		got := map[uuid.UUID]*delayq.Item{}
		for _, run := range w.lease() {
			got[run.Items[0].ID] = run.Items[0]
		}
		for _, it := range items {
			if diff := cmp.Diff(it.Record, got[it.ID].Record, sameRecord); diff != "" {
				rt.Fatalf("headers have moved (-stored +handed out):\n%s", diff)
			}
		}
	})
}
