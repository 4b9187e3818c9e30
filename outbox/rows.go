package outbox

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

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
insert into claimq.outbox (slot, bucket, ordered, id, topic, key, value, correlation_id, causation_id, header_keys, header_values)
select (select claimq.outbox_slot(clock_timestamp())),
       t.bucket, t.ordered, t.id, t.topic, t.key, t.value, t.correlation_id, t.causation_id,
       t.header_keys::bytea[], t.header_values::bytea[]
  from unnest($1::int2[], $2::bool[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[], $8::bytea[], $9::text[], $10::text[])
       as t (bucket, ordered, id, topic, key, value, correlation_id, causation_id, header_keys, header_values)`

// sqlInsertBare is sqlInsert for effects without headers of their own, which
// spares the arrays.
const sqlInsertBare = `
insert into claimq.outbox (slot, bucket, ordered, id, topic, key, value, correlation_id, causation_id)
select (select claimq.outbox_slot(clock_timestamp())),
       t.bucket, t.ordered, t.id, t.topic, t.key, t.value, t.correlation_id, t.causation_id
  from unnest($1::int2[], $2::bool[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[], $8::bytea[])
       as t (bucket, ordered, id, topic, key, value, correlation_id, causation_id)`

// rows are the columns of an insert.
type rows struct {
	buckets      []int16
	ordered      []bool
	ids          []pgtype.UUID
	topics       []string
	keys, values [][]byte
	correlations [][]byte
	causations   [][]byte
	headerKeys   []string // nil when no row has headers of its own
	headerValues []string
}

// statement returns the insert for the rows, and its arguments.
func (o *Outbox) statement(r *rows) (string, []any) {
	args := []any{r.buckets, r.ordered, r.ids, r.topics, r.keys, r.values, r.correlations, r.causations}
	if r.headerKeys == nil {
		return o.insertBare, args
	}
	return o.insert, append(args, r.headerKeys, r.headerValues)
}

// rows checks n effects and lays them out.
func (o *Outbox) rows(n int, at func(int) (Cause, *Effect)) (*rows, error) {
	bytes := make([][]byte, 4*n)
	r := &rows{
		buckets: make([]int16, n), ordered: make([]bool, n), ids: make([]pgtype.UUID, n), topics: make([]string, n),
		keys: bytes[:n], values: bytes[n : 2*n], correlations: bytes[2*n : 3*n], causations: bytes[3*n:],
	}
	seen := make(map[uuid.UUID]struct{}, n)
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
		r.correlations[i] = ownOr(effect.Headers, HeaderCorrelation, cause.CorrelationID)
		r.causations[i] = ownOr(effect.Headers, HeaderCausation, cause.CausationID)
		if len(effect.Headers) > 0 || effect.CloudEvent != nil {
			r.needHeaders()
		}
	}
	if r.headerKeys != nil {
		var text headerText
		for i := range n {
			_, effect := at(i)
			if headers := effect.allHeaders(r.ids[i].Bytes); len(headers) > 0 {
				r.headerKeys[i], r.headerValues[i] = text.render(headers)
			}
		}
	}
	return r, nil
}

// needHeaders gives each row its header arrays, empty as yet, unless they are there.
func (r *rows) needHeaders() {
	if r.headerKeys == nil {
		n := len(r.ids)
		r.headerKeys, r.headerValues = slices.Repeat([]string{"{}"}, n), slices.Repeat([]string{"{}"}, n)
	}
}

// ownOr returns the column for a header that comes from the cause: null when there
// is nothing to say, or when the effect says it itself.
func ownOr(headers []kgo.RecordHeader, key, value string) []byte {
	if value == "" || slices.ContainsFunc(headers, func(h kgo.RecordHeader) bool { return h.Key == key }) {
		return nil
	}
	return []byte(value)
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

func (t *headerText) render(headers []kgo.RecordHeader) (keys, values string) {
	t.keys, t.values = append(t.keys[:0], '{'), append(t.values[:0], '{')
	for _, h := range headers {
		t.add(h.Key, h.Value)
	}
	t.keys[len(t.keys)-1], t.values[len(t.values)-1] = '}', '}' // in place of the last comma
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
