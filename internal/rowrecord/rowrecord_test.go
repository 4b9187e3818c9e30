package rowrecord_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/rowrecord"
)

var sameRecord = cmp.Options{
	cmp.Comparer(func(a, b kgo.RecordAttrs) bool { return a == b }),
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
	cmpopts.IgnoreFields(kgo.Record{}, "Context"),
}

// anyBytes draws what is easily taken for one another: null, empty, and anything.
func anyBytes() *rapid.Generator[[]byte] {
	return rapid.OneOf(rapid.Just[[]byte](nil), rapid.Just([]byte{}), rapid.SliceOfN(rapid.Byte(), 1, 40))
}

// anyRecord draws records as they can come from Kafka. Their times are whole
// milliseconds that the client library can hold.
func anyRecord() *rapid.Generator[*kgo.Record] {
	return rapid.Custom(func(t *rapid.T) *kgo.Record {
		r := &kgo.Record{
			Topic: "orders", Key: anyBytes().Draw(t, "key"), Value: anyBytes().Draw(t, "value"),
			Partition: rapid.Int32Range(0, math.MaxInt32).Draw(t, "partition"), Offset: rapid.Int64Range(0, math.MaxInt64).Draw(t, "offset"),
			LeaderEpoch: rapid.Int32Range(-1, math.MaxInt32).Draw(t, "epoch"),
			Timestamp:   time.UnixMilli(rapid.Int64Range(math.MinInt64/1_000_000, math.MaxInt64/1_000_000).Draw(t, "time")),
			Attrs: kgo.NewRecordAttrs(kgo.RecordAttrsOpts{
				Codec:         kgo.CompressionCodecType(rapid.IntRange(0, 7).Draw(t, "codec")),
				TimestampType: rapid.Int8Range(-1, 1).Draw(t, "time type"),
				Transactional: rapid.Bool().Draw(t, "transactional"), Control: rapid.Bool().Draw(t, "control"),
			}),
		}
		for n := rapid.IntRange(0, 4).Draw(t, "headers"); n > 0; n-- {
			r.Headers = append(r.Headers, kgo.RecordHeader{
				Key: string(anyBytes().Draw(t, "header")), Value: anyBytes().Draw(t, "header value"),
			})
		}
		return r
	})
}

// One record written from its columns and read back is the same one.
func TestColumnsThroughPostgres(t *testing.T) {
	t.Parallel()
	conn := pgtest.NewEmpty(t, pgtest.DSN(t)).Conn()
	rapid.Check(t, func(rt *rapid.T) {
		record := anyRecord().Draw(rt, "record")
		c := rowrecord.Split(record)
		var back rowrecord.Columns
		err := conn.QueryRow(t.Context(), `select $1::text, $2::bytea, $3::bytea, $4::bytea[], $5::bytea[], $6::timestamptz, $7::smallint`,
			c.Topic, c.Key, c.Value, c.HeaderKeys, c.HeaderValues, c.At, c.Attributes).Scan(back.Targets()...)
		if err != nil {
			rt.Fatal(err)
		}
		got := back.Record(rowrecord.Position{Partition: record.Partition, Offset: record.Offset, LeaderEpoch: record.LeaderEpoch})
		if diff := cmp.Diff(record, got, sameRecord); diff != "" {
			rt.Fatalf("record (-written +read):\n%s", diff)
		}
	})
}

// Many records in one statement keep their own headers, by the join that the
// package's comment shows.
func TestArraysThroughPostgres(t *testing.T) {
	t.Parallel()
	conn := pgtest.NewEmpty(t, pgtest.DSN(t)).Conn()
	rapid.Check(t, func(rt *rapid.T) {
		records := rapid.SliceOfN(anyRecord(), 0, 6).Draw(rt, "records")
		var a rowrecord.Arrays
		for _, record := range records {
			a.Append(record)
		}
		rows, err := conn.Query(t.Context(), `
			select u.topic, u.key, u.value, coalesce(h.keys, '{}'), coalesce(h.vals, '{}'), u.at, u.attributes
			  from unnest($4::text[], $5::bytea[], $6::bytea[], $7::timestamptz[], $8::smallint[]) with ordinality
			       as u (topic, key, value, at, attributes, n)
			  left join (select h.n, array_agg(h.k order by h.i) as keys, array_agg(h.v order by h.i) as vals
			               from unnest($1::int[], $2::bytea[], $3::bytea[]) with ordinality as h (n, k, v, i)
			              group by h.n) h on h.n = u.n
			 order by u.n`,
			a.HeaderOf, a.HeaderKeys, a.HeaderValues, a.Topics, a.Keys, a.Values, a.Ats, a.Attributes)
		if err != nil {
			rt.Fatal(err)
		}
		defer rows.Close()
		read := 0
		for ; rows.Next(); read++ {
			var back rowrecord.Columns
			if err := rows.Scan(back.Targets()...); err != nil {
				rt.Fatal(err)
			}
			want := records[read]
			got := back.Record(rowrecord.Position{Partition: want.Partition, Offset: want.Offset, LeaderEpoch: want.LeaderEpoch})
			if diff := cmp.Diff(want, got, sameRecord); diff != "" {
				rt.Fatalf("record %d (-written +read):\n%s", read, diff)
			}
		}
		if err := rows.Err(); err != nil || read != len(records) {
			rt.Fatalf("%d records of %d came back: %v", read, len(records), err)
		}
	})
}

// A record that was never in Kafka has no timestamp, and still has none.
func TestZeroTimestamp(t *testing.T) {
	t.Parallel()
	conn := pgtest.NewEmpty(t, pgtest.DSN(t)).Conn()
	c := rowrecord.Split(&kgo.Record{Topic: "orders"})
	var back rowrecord.Columns
	err := conn.QueryRow(t.Context(), `select $1::text, $2::bytea, $3::bytea, $4::bytea[], $5::bytea[], $6::timestamptz, $7::smallint`,
		c.Topic, c.Key, c.Value, c.HeaderKeys, c.HeaderValues, c.At, c.Attributes).Scan(back.Targets()...)
	if err != nil {
		t.Fatal(err)
	}
	if got := back.Record(rowrecord.Position{}); !got.Timestamp.IsZero() || got.Headers != nil {
		t.Fatalf("%+v", got)
	}
}

// The ids are stored: they must be the same in every version.
func TestSourceIDIsStableAndTellsSourcesApart(t *testing.T) {
	t.Parallel()
	if got := rowrecord.SourceID(1, 2, 3, 4).String(); got != "d2be340a-f146-5179-9ca7-a03ef2bedb19" {
		t.Errorf("the id of a fixed source is %s", got)
	}
	seen := map[uuid.UUID][4]int{}
	for _, s := range [][4]int{{1, 2, 3, 4}, {2, 2, 3, 4}, {1, 3, 3, 4}, {1, 2, 4, 4}, {1, 2, 3, 5}, {2, 1, 3, 4}, {1, 2, 3, 4 << 32}, {1, 2, 0, 3<<32 + 4}} {
		id := rowrecord.SourceID(int32(s[0]), int32(s[1]), int32(s[2]), int64(s[3]))
		if other, ok := seen[id]; ok {
			t.Errorf("sources %v and %v have one id", s, other)
		}
		seen[id] = s
	}
}
