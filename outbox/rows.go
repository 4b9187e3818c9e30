package outbox

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/twmb/franz-go/pkg/kgo"
)

// buckets is how many parts the keys are hashed into: what slices are made of.
// It is fixed, as it stands in the rows.
const buckets = 64

// sqlInsert stores any number of effects. The numbers that keep their order are
// drawn while the arrays are walked, so in the arrays' order. The slot is asked
// for once; header arrays come as text, because an array of arrays cannot be
// unnested by rows.
const sqlInsert = `
insert into claimq.outbox (slot, bucket, ordered, id, topic, key, value, header_keys, header_values)
select (select claimq.outbox_slot(clock_timestamp())),
       t.bucket, t.ordered, t.id, t.topic, t.key, t.value, t.header_keys::bytea[], t.header_values::bytea[]
  from unnest($1::int2[], $2::bool[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[], $7::text[], $8::text[])
       as t (bucket, ordered, id, topic, key, value, header_keys, header_values)`

// rows are the columns of an insert.
type rows struct {
	buckets      []int16
	ordered      []bool
	ids          []pgtype.UUID
	topics       []string
	keys, values [][]byte
	headerKeys   []string
	headerValues []string
}

func (r *rows) arguments() []any {
	return []any{r.buckets, r.ordered, r.ids, r.topics, r.keys, r.values, r.headerKeys, r.headerValues}
}

// rows checks n effects and lays them out.
func (o *Outbox) rows(n int, at func(int) (Cause, *Effect)) (*rows, error) {
	r := &rows{
		buckets: make([]int16, n), ordered: make([]bool, n), ids: make([]pgtype.UUID, n), topics: make([]string, n),
		keys: make([][]byte, n), values: make([][]byte, n), headerKeys: make([]string, n), headerValues: make([]string, n),
	}
	seen := make(map[uuid.UUID]struct{}, n)
	var text headerText
	for i := range n {
		cause, effect := at(i)
		id, err := effect.check(cause, o.maxBytes)
		if err != nil {
			return nil, err
		}
		if _, twice := seen[id]; twice {
			return nil, effect.refuse(ErrSameID, 0)
		}
		seen[id] = struct{}{}
		r.buckets[i] = bucketOf(effect.Key, id)
		r.ordered[i] = !effect.Unordered
		r.ids[i] = pgtype.UUID{Bytes: id, Valid: true}
		r.topics[i] = effect.Topic
		r.keys[i] = effect.Key
		r.values[i] = effect.Value
		r.headerKeys[i], r.headerValues[i] = text.render(cause, effect.Headers)
	}
	return r, nil
}

// bucketOf is the twin of the SQL function outbox_bucket.
func bucketOf(key []byte, id uuid.UUID) int16 {
	if key == nil {
		key = id[:]
	}
	sum := sha256.Sum256(key)
	return int16(sum[0] % buckets)
}

// headerText writes headers as two array literals of bytea. It is reused from row
// to row for its buffers.
type headerText struct{ keys, values []byte }

func (t *headerText) render(cause Cause, headers []kgo.RecordHeader) (keys, values string) {
	t.keys, t.values = append(t.keys[:0], '{'), append(t.values[:0], '{')
	correlation, causation := cause.CorrelationID != "", cause.CausationID != ""
	for _, h := range headers {
		switch h.Key {
		case HeaderCorrelation:
			correlation = false
		case HeaderCausation:
			causation = false
		}
		t.add(h.Key, h.Value)
	}
	if correlation {
		t.add(HeaderCorrelation, []byte(cause.CorrelationID))
	}
	if causation {
		t.add(HeaderCausation, []byte(cause.CausationID))
	}
	if len(t.keys) == 1 {
		return "{}", "{}"
	}
	t.keys[len(t.keys)-1], t.values[len(t.values)-1] = '}', '}'
	return string(t.keys), string(t.values)
}

// add appends one header and a comma; a nil value is NULL, an empty one is not.
func (t *headerText) add(key string, value []byte) {
	t.keys = append(t.keys, `"\\x`...)
	t.keys = hex.AppendEncode(t.keys, []byte(key))
	t.keys = append(t.keys, `",`...)
	if value == nil {
		t.values = append(t.values, `NULL,`...)
		return
	}
	t.values = append(t.values, `"\\x`...)
	t.values = hex.AppendEncode(t.values, value)
	t.values = append(t.values, `",`...)
}
