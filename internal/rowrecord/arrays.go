package rowrecord

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Arrays is many records side by side, for one INSERT … SELECT FROM unnest(…).
//
// Postgres has no arrays of arrays of different lengths, so the headers of all
// records are three flat arrays of their own: the record's number (from 1, as
// WITH ORDINALITY counts), key, value. A statement puts them back with
//
//	left join (select h.n, array_agg(h.k order by h.i) as keys, array_agg(h.v order by h.i) as vals
//	             from unnest($1::int[], $2::bytea[], $3::bytea[]) with ordinality as h (n, k, v, i)
//	            group by h.n) h on h.n = u.n
type Arrays struct {
	Topics       []string
	Keys, Values [][]byte
	Ats          []time.Time
	Attributes   []int16

	HeaderOf     []int32
	HeaderKeys   [][]byte
	HeaderValues [][]byte
}

// Append adds a record. The arrays share its bytes.
func (a *Arrays) Append(record *kgo.Record) {
	c := Split(record)
	a.Topics = append(a.Topics, c.Topic)
	a.Keys = append(a.Keys, c.Key)
	a.Values = append(a.Values, c.Value)
	a.Ats = append(a.Ats, c.At)
	a.Attributes = append(a.Attributes, c.Attributes)
	for i := range c.HeaderKeys {
		a.HeaderOf = append(a.HeaderOf, int32(len(a.Topics))) //nolint:gosec // rows of one batch
		a.HeaderKeys = append(a.HeaderKeys, c.HeaderKeys[i])
		a.HeaderValues = append(a.HeaderValues, c.HeaderValues[i])
	}
}
