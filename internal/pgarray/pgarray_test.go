package pgarray_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/claimq/claimq/internal/pgarray"
)

// Each type must put the very bytes on the wire that pgx's own slice does.
func TestSameBytesAsPgxsOwnSlices(t *testing.T) {
	t.Parallel()
	ids := []uuid.UUID{uuid.New(), {}, uuid.Max}
	plain := make([][16]byte, len(ids))
	for i, id := range ids {
		plain[i] = id
	}
	now := time.Now().Round(time.Microsecond)
	for _, c := range []struct {
		name       string
		oid        uint32
		ours, pgxs any
	}{
		{"uuid", pgtype.UUIDArrayOID, pgarray.UUIDs(ids), plain},
		{"no uuid", pgtype.UUIDArrayOID, pgarray.UUIDs{}, [][16]byte{}},
		{"int2", pgtype.Int2ArrayOID, pgarray.Int2s{1, -1, math.MaxInt16}, []int16{1, -1, math.MaxInt16}},
		{"int4", pgtype.Int4ArrayOID, pgarray.Int4s{1, -1, math.MinInt32}, []int32{1, -1, math.MinInt32}},
		{"int8", pgtype.Int8ArrayOID, pgarray.Int8s{1, -1, math.MaxInt64}, []int64{1, -1, math.MaxInt64}},
		{"text", pgtype.TextArrayOID, pgarray.Texts{"", "a", "ü,\"{}"}, []string{"", "a", "ü,\"{}"}},
		{"timestamptz", pgtype.TimestamptzArrayOID, pgarray.Times{now, {}}, []time.Time{now, {}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := pgtype.NewMap()
			ours, err := m.Encode(c.oid, pgtype.BinaryFormatCode, c.ours, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, err := m.Encode(c.oid, pgtype.BinaryFormatCode, c.pgxs, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(ours, want) {
				t.Errorf("% x\nwant\n% x", ours, want)
			}
		})
	}
}

// A nil slice is null, as with pgx's own: unnest makes no rows of either.
func TestNilIsNull(t *testing.T) {
	t.Parallel()
	got, err := pgtype.NewMap().Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, pgarray.UUIDs(nil), nil)
	if err != nil || got != nil {
		t.Errorf("nil is % x, %v; want null", got, err)
	}
}

func BenchmarkUUIDs(b *testing.B) {
	ids := make([]uuid.UUID, 500)
	for i := range ids {
		ids[i] = uuid.New()
	}
	m := pgtype.NewMap()
	buffer := make([]byte, 0, 1<<16)
	for name, value := range map[string]any{"pgarray": pgarray.UUIDs(ids), "slice": ids} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, value, buffer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
