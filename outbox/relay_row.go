package outbox

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The scopes of a row that is set aside; the database's held_scope.
const (
	scopeRow   = "row"   // the row itself was refused
	scopeTopic = "topic" // its topic takes nothing
	scopeKey   = "key"   // an earlier row of its topic and key is set aside
)

// outRow is a row on its way out.
type outRow struct {
	seq          int64
	id           uuid.UUID
	bucket       int16
	ordered      bool
	topic        string
	key, value   []byte
	headerKeys   [][]byte
	headerValues [][]byte
	correlation  []byte
	causation    []byte
	held         string // why it must not be sent now: "", scopeKey or scopeTopic
	attempts     int    // failed ones so far; of rows that were set aside
	scope        string // of rows that were set aside
}

// orderKey is what order is kept within.
type orderKey struct{ topic, key string }

// inOrder returns the row's order key, and false when it has none.
func (r *outRow) inOrder() (orderKey, bool) {
	return orderKey{r.topic, string(r.key)}, r.ordered && r.key != nil
}

// record is the row as Kafka gets it: with its own headers, and those of the
// columns behind them. Add has left out a column whose header is among its own.
func (r *outRow) record() *kgo.Record {
	headers := make([]kgo.RecordHeader, 0, len(r.headerKeys)+3)
	named := false
	for i, key := range r.headerKeys {
		headers = append(headers, kgo.RecordHeader{Key: string(key), Value: r.headerValues[i]})
		named = named || string(key) == HeaderID
	}
	if r.correlation != nil {
		headers = append(headers, kgo.RecordHeader{Key: HeaderCorrelation, Value: r.correlation})
	}
	if r.causation != nil {
		headers = append(headers, kgo.RecordHeader{Key: HeaderCausation, Value: r.causation})
	}
	if !named {
		headers = append(headers, kgo.RecordHeader{Key: HeaderID, Value: []byte(r.id.String())})
	}
	return &kgo.Record{Topic: r.topic, Key: r.key, Value: r.value, Headers: headers}
}

// wireSize is at least what the row takes in a batch, before compression: its
// bytes, and the longest that each length and the record's own fields can be.
func (r *outRow) wireSize() int {
	const header = 10 // two lengths
	size := 64 + len(r.key) + len(r.value) + header + len(HeaderID) + 36
	size += 2*header + len(HeaderCorrelation) + len(r.correlation) + len(HeaderCausation) + len(r.causation)
	for i, key := range r.headerKeys {
		size += header + len(key) + len(r.headerValues[i])
	}
	return size
}

// fields are the targets of a scan of the columns that every reader of rows
// selects first. The conversions spare pgx a detour by text and by reflection.
func (r *outRow) fields() []any {
	return []any{
		&r.seq, (*[16]byte)(&r.id), &r.bucket, &r.ordered, &r.topic, &r.key, &r.value,
		(*pgtype.FlatArray[[]byte])(&r.headerKeys), (*pgtype.FlatArray[[]byte])(&r.headerValues),
		&r.correlation, &r.causation, &r.held,
	}
}

func scanOutRow(rows pgx.CollectableRow) (outRow, error) {
	var r outRow
	err := rows.Scan(r.fields()...)
	return r, err
}

func scanHeldRow(rows pgx.CollectableRow) (outRow, error) {
	var r outRow
	err := rows.Scan(append(r.fields(), &r.attempts, &r.scope)...)
	return r, err
}

// slots is how many there are in the ring.
const slots = 3

// A place is where a row of a window lies.
type place struct {
	seq   int64
	bytes int32
	slot  int16
	tid   pgtype.TID
}

// pages cuts places, which are in order, into what is read at once.
func pages(places []place, maxRows, maxBytes int) [][]place {
	var list [][]place
	for len(places) > 0 {
		n, bytes := 0, 0
		for n < len(places) && n < maxRows && (n == 0 || bytes+int(places[n].bytes) <= maxBytes) {
			bytes += int(places[n].bytes)
			n++
		}
		list = append(list, places[:n])
		places = places[n:]
	}
	return list
}

// tids sorts places into their slots.
func tids(places []place) (bySlot [slots][]pgtype.TID) {
	for i := range bySlot {
		bySlot[i] = []pgtype.TID{}
	}
	for _, p := range places {
		bySlot[p.slot] = append(bySlot[p.slot], p.tid)
	}
	return bySlot
}

// A movedError says that rows are no longer where the window's list found them:
// somebody has rewritten the table. The window is listed again.
type movedError struct{ want, got int }

func (e *movedError) Error() string {
	return fmt.Sprintf("outbox: %d of %d rows have moved since they were listed: was a slot of the outbox rewritten (VACUUM FULL, CLUSTER)? The window is read again", e.want-e.got, e.want)
}

// verify compares what was read with what was listed.
func verify(places []place, rows []outRow) error {
	if len(places) != len(rows) {
		return &movedError{len(places), len(rows)}
	}
	for i := range places {
		if places[i].seq != rows[i].seq {
			return &movedError{len(places), i}
		}
	}
	return nil
}
