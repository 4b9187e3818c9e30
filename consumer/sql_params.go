package consumer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/claimq/claimq/internal/jsonbcheck"
)

// A sqlParam is one thing that a statement can take of messages.
type sqlParam struct {
	name, plural string
	sqlType      string                  // of one; the plural's is an array of it
	one          func(m *Message) any    // the argument in the Each form
	many         func(ms []*Message) any // the argument in the batch form
	check        func(m *Message) error  // nil: every message has it
}

// param makes a sqlParam of how one message's argument is found. T is a type that
// pgx writes in binary without looking at it by reflection, and that has a null.
func param[T any](name, plural, sqlType string, get func(m *Message) T, check func(m *Message) error) *sqlParam {
	return &sqlParam{
		name: name, plural: plural, sqlType: sqlType, check: check,
		one: func(m *Message) any { return get(m) },
		many: func(ms []*Message) any {
			column := make([]T, len(ms))
			for i, m := range ms {
				column[i] = get(m)
			}
			return column
		},
	}
}

// sqlParams are all parameters, in the order in which SQLStatement documents them.
// A slice of bytes that is nil is null: for bytea and for jsonb alike.
var sqlParams = []*sqlParam{
	param("value", "values", "jsonb", func(m *Message) []byte { return m.Record.Value }, checkJSONB),
	param("raw", "raws", "bytea", func(m *Message) []byte { return m.Record.Value }, nil),
	param("text", "texts", "text", func(m *Message) pgtype.Text { return textOf(m.Record.Value) },
		func(m *Message) error { return checkText("value", m.Record.Value) }),
	param("id", "ids", "text", func(m *Message) pgtype.Text { return pgtype.Text{String: m.Identity.ID, Valid: true} },
		func(m *Message) error { return checkText("id", []byte(m.Identity.ID)) }),
	param("claim", "claims", "uuid", func(m *Message) pgtype.UUID {
		return pgtype.UUID{Bytes: m.claim, Valid: m.claim != uuid.Nil}
	}, nil),
	param("key", "keys", "bytea", func(m *Message) []byte { return m.Record.Key }, nil),
	param("key_text", "key_texts", "text", func(m *Message) pgtype.Text { return textOf(m.Record.Key) },
		func(m *Message) error { return checkText("key", m.Record.Key) }),
	param("headers", "headers_list", "jsonb", headersObject, nil),
	param("time", "times", "timestamptz", recordTime, checkTime),
	param("topic", "topics", "text", func(m *Message) pgtype.Text { return pgtype.Text{String: m.Record.Topic, Valid: true} }, nil),
	param("partition", "partitions", "int4", func(m *Message) pgtype.Int4 { return pgtype.Int4{Int32: m.Record.Partition, Valid: true} }, nil),
	param("offset", "offsets", "int8", func(m *Message) pgtype.Int8 { return pgtype.Int8{Int64: m.Record.Offset, Valid: true} }, nil),
	param("tenant", "tenants", "text", func(m *Message) pgtype.Text { return textOrNull(m.Identity.Tenant) }, nil),
	param("operation", "operations", "text", func(m *Message) pgtype.Text { return textOrNull(m.Identity.Operation) }, nil),
}

// findParam returns the parameter of a name that a rewritten text holds, or nil.
func findParam(name string, each bool) *sqlParam {
	for _, p := range sqlParams {
		if p.nameIn(each) == name {
			return p
		}
	}
	return nil
}

// nameIn is the parameter's name in the Each form or in the batch form.
func (p *sqlParam) nameIn(each bool) string {
	if each {
		return p.name
	}
	return p.plural
}

// typeIn is the parameter's type in the Each form or in the batch form.
func (p *sqlParam) typeIn(each bool) string {
	if each {
		return p.sqlType
	}
	return p.sqlType + "[]"
}

func textOf(bytes []byte) pgtype.Text {
	return pgtype.Text{String: string(bytes), Valid: bytes != nil}
}

func textOrNull(text *string) pgtype.Text {
	if text == nil {
		return pgtype.Text{}
	}
	return pgtype.Text{String: *text, Valid: true}
}

// headersObject returns the headers as a JSON object that jsonb takes. The last
// header of a name decides, as in Message.Header.
func headersObject(m *Message) []byte {
	last := make(map[string]*string, len(m.Record.Headers))
	for _, h := range m.Record.Headers {
		if !storableText([]byte(h.Key)) {
			continue
		}
		last[h.Key] = nil
		if h.Value != nil && storableText(h.Value) {
			value := string(h.Value)
			last[h.Key] = &value
		}
	}
	object, err := json.Marshal(last)
	if err != nil { // a map of texts is always encodable
		return []byte("{}")
	}
	return object
}

// The first and the last second that a timestamptz holds.
var (
	firstTime = time.Date(-4713, time.November, 24, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(294276, time.December, 31, 23, 59, 59, 999999000, time.UTC)
)

// recordTime is the record's time; brokers say -1 ms for a record without one.
func recordTime(m *Message) pgtype.Timestamptz {
	at := m.Record.Timestamp
	return pgtype.Timestamptz{Time: at, Valid: !at.IsZero() && at.UnixMilli() != -1}
}

func checkTime(m *Message) error {
	if at := recordTime(m); at.Valid && (at.Time.Before(firstTime) || at.Time.After(lastTime)) {
		return &unfitError{what: "time", err: fmt.Errorf("%d ms after 1970, outside of what a timestamptz holds", at.Time.UnixMilli())}
	}
	return nil
}

func checkJSONB(m *Message) error {
	if m.Record.Value == nil {
		return nil
	}
	if err := jsonbcheck.Check(m.Record.Value); err != nil {
		return &unfitError{what: "value", err: err}
	}
	return nil
}

var errNotText = errors.New("not storable as text: it is not UTF-8, or holds a NUL")

func checkText(what string, bytes []byte) error {
	if !storableText(bytes) {
		return &unfitError{what: what, err: errNotText}
	}
	return nil
}

func storableText(bytes []byte) bool {
	return utf8.Valid(bytes) && !slices.Contains(bytes, 0)
}

// An unfitError says that a message is not what a statement asks for. It quotes
// nothing of the message.
type unfitError struct {
	what string // the part of the message
	err  error
}

func (e *unfitError) Error() string { return fmt.Sprintf("the message's %s is %v", e.what, e.err) }
func (e *unfitError) Unwrap() error { return e.err }

// ErrorClass returns "undecodable".
func (e *unfitError) ErrorClass() string { return classUndecodable }
