package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/sqlstate"
)

// inTransaction runs f in a transaction of the kind that the consumer uses and
// commits it.
func inTransaction(t *testing.T, db *pgtest.DB, f func(tx pgx.Tx) error) error {
	t.Helper()
	return pgx.BeginTxFunc(t.Context(), db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, f)
}

// handleSQL hands messages to a handler as the consumer does: validated, and with
// the pipelined form's statements in one flight.
func handleSQL(t *testing.T, db *pgtest.DB, s SQLStatement, ms ...*Message) error {
	t.Helper()
	h, err := SQL(s)
	if err != nil {
		t.Fatalf("SQL: %v", err)
	}
	for _, m := range ms {
		if err := h.validate(m); err != nil {
			return err
		}
	}
	return inTransaction(t, db, func(tx pgx.Tx) error {
		if h.kind == kindBatch {
			return h.batch(t.Context(), tx, ms)
		}
		b := &pgx.Batch{}
		for _, m := range ms {
			if err := h.pipelined(t.Context(), b, m); err != nil {
				return err
			}
		}
		return tx.SendBatch(t.Context(), b).Close()
	})
}

func execute(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// everything is what one message has, as the database got it.
type everything struct {
	Value     *string
	Raw       []byte
	Text      *string
	ID        string
	Claim     *uuid.UUID
	Key       []byte
	KeyText   *string
	Headers   string
	Time      *time.Time
	Topic     string
	Partition int32
	Offset    int64
	Tenant    *string
	Operation *string
}

func readEverything(t *testing.T, db *pgtest.DB) []everything {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `select value::text, raw, "text", id, claim, key, key_text, headers::text, at, topic, partition, "offset", tenant, operation from `+
		db.Schema+`.everything order by "offset"`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[everything])
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func createEverything(t *testing.T, db *pgtest.DB) {
	t.Helper()
	execute(t, db, `create table `+db.Schema+`.everything (value jsonb, raw bytea, "text" text, id text primary key, claim uuid, key bytea, key_text text,
		headers jsonb, at timestamptz, topic text, partition int, "offset" bigint, tenant text, operation text)`)
}

// Both forms write the same rows, nulls and empty values told apart.
func TestSQLPassesEveryParameter(t *testing.T) {
	t.Parallel()
	const each = `insert into SCHEMA.everything values (@value, @raw, @text, @id, @claim, @key, @key_text, @headers, @time, @topic, @partition, @offset, @tenant, @operation)`
	const batch = `insert into SCHEMA.everything select * from unnest(@values, @raws, @texts, @ids, @claims,
		@keys, @key_texts, @headers_list, @times, @topics, @partitions, @offsets, @tenants, @operations)`
	text := func(s string) *string { return &s }
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	claim := uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff")
	messages := func() []*Message {
		full := sqlMessage(`{"total": 12.50, "n": "é"}`)
		full.Record.Key, full.Record.Offset, full.Record.Timestamp = []byte("k-1"), 1, at
		full.Record.Headers = []kgo.RecordHeader{{Key: "type", Value: []byte("order")}}
		full.Identity.ID, full.claim = "full", claim
		full.Identity.Tenant, full.Identity.Operation = text("acme"), text("")
		none := sqlMessage("")
		none.Record.Value, none.Record.Offset, none.Record.Timestamp = nil, 2, time.UnixMilli(-1)
		none.Identity.ID = "none"
		jsonNull := sqlMessage("null")
		jsonNull.Record.Key, jsonNull.Record.Offset, jsonNull.Record.Timestamp = []byte{}, 3, at
		jsonNull.Identity.ID, jsonNull.claim = `quoted "id", {with} \ all`, claim
		return []*Message{full, none, jsonNull}
	}
	want := []everything{
		{
			Value: text(`{"n": "é", "total": 12.50}`), Raw: []byte(`{"total": 12.50, "n": "é"}`), Text: text(`{"total": 12.50, "n": "é"}`), ID: "full", Claim: &claim,
			Key: []byte("k-1"), KeyText: text("k-1"), Headers: `{"type": "order"}`, Time: &at, Topic: "orders", Partition: 3, Offset: 1, Tenant: text("acme"), Operation: text(""),
		},
		{ID: "none", Headers: "{}", Topic: "orders", Partition: 3, Offset: 2},
		{
			Value: text("null"), Raw: []byte("null"), Text: text("null"), ID: `quoted "id", {with} \ all`, Claim: &claim,
			Key: []byte{}, KeyText: text(""), Headers: "{}", Time: &at, Topic: "orders", Partition: 3, Offset: 3,
		},
	}
	for _, tt := range []struct {
		name      string
		statement SQLStatement
	}{
		{"each", SQLStatement{Statement: each, Each: true}},
		{"batch", SQLStatement{Statement: batch}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			createEverything(t, db)
			tt.statement.Statement = strings.ReplaceAll(tt.statement.Statement, "SCHEMA", db.Schema)
			if err := tt.statement.Check(t.Context(), db.Conn()); err != nil {
				t.Fatalf("Check: %v", err)
			}
			if err := handleSQL(t, db, tt.statement, messages()...); err != nil {
				t.Fatalf("the handler: %v", err)
			}
			got := readEverything(t, db)
			for i := range got {
				if got[i].Time != nil {
					utc := got[i].Time.UTC()
					got[i].Time = &utc
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the rows (-want +got):\n%s", diff)
			}
		})
	}
}

// The same through a pooler's query mode, which knows no prepared statements.
func TestSQLWorksWithCacheDescribe(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	createEverything(t, db)
	config := db.Conn().Config()
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	s := SQLStatement{Statement: `insert into ` + db.Schema + `.everything (id, value, claim, headers, at) select * from unnest(@ids, @values, @claims, @headers_list, @times)`}
	if err := s.Check(t.Context(), conn); err != nil {
		t.Fatalf("Check: %v", err)
	}
	h, err := SQL(s)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.batch(t.Context(), tx, []*Message{sqlMessage("1"), sqlMessage("{}")}); err != nil {
		t.Fatalf("the handler: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Every record that validate lets through reaches the database byte for byte.
func TestSQLRawKeepsEveryByte(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	createEverything(t, db)
	all := make([]byte, 0, 1024)
	for i := range 256 {
		all = append(all, byte(i), 0xc3, 0x28, '\\')
	}
	m := sqlMessage("")
	m.Record.Value, m.Record.Key, m.Identity.ID = all, all, "all"
	for _, s := range []SQLStatement{
		{Statement: `insert into ` + db.Schema + `.everything (id, raw, key) select * from unnest(@ids, @raws, @keys)`},
		{Statement: `insert into ` + db.Schema + `.everything (id, raw, key) values (@id || '-each', @raw, @key)`, Each: true},
	} {
		if err := handleSQL(t, db, s, m); err != nil {
			t.Fatalf("the handler: %v", err)
		}
	}
	var same int
	if err := db.Pool.QueryRow(t.Context(), `select count(*) from `+db.Schema+`.everything where raw = $1 and key = $1`, all).Scan(&same); err != nil {
		t.Fatal(err)
	}
	if same != 2 {
		t.Errorf("%d rows of 2 hold the record's bytes", same)
	}
}

func TestSQLResultIsLeftOnTheMessage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	execute(t, db, `create table `+db.Schema+`.orders (id bigint generated always as identity, key text, body jsonb)`)
	for _, tt := range []struct {
		returning string
		want      string
		left      bool
	}{
		{"returning 'extra', convert_to('order-' || key, 'UTF8') as result", "order-k", true},
		{"returning 'order-' || key as result", "order-k", true},
		{"returning jsonb_build_object('key', key) as result, id", `{"key": "k"}`, true},
		{"returning to_json(key) as result", `"k"`, true},
		{"returning ''::text as result", "", true},
		{"returning null::text as result", "", false},
		{"returning id", "", false},
		{"", "", false},
	} {
		m := sqlMessage("{}")
		m.Record.Key = []byte("k")
		s := SQLStatement{Statement: `insert into ` + db.Schema + `.orders (key, body) values (@key_text, @value) ` + tt.returning, Each: true}
		if err := s.Check(t.Context(), db.Conn()); err != nil {
			t.Errorf("%q: Check: %v", tt.returning, err)
		}
		if err := handleSQL(t, db, s, m); err != nil {
			t.Errorf("%q: the handler: %v", tt.returning, err)
			continue
		}
		if string(m.result) != tt.want || m.left != tt.left {
			t.Errorf("%q leaves %q (%v), want %q (%v)", tt.returning, m.result, m.left, tt.want, tt.left)
		}
	}
}

func TestSQLResultOfSeveralRowsFailsTheMessage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	err := handleSQL(t, db, SQLStatement{Statement: "select @id as result from generate_series(1, 2)", Each: true}, sqlMessage("1"))
	if err == nil || !strings.Contains(err.Error(), "more than one row") {
		t.Errorf("two rows with a result: %v, want an error that says so", err)
	}
	err = handleSQL(t, db, SQLStatement{Statement: "select repeat('x', 65537) as result, @id", Each: true}, sqlMessage("1"))
	if err == nil || !strings.Contains(err.Error(), "65537 bytes") {
		t.Errorf("a result that is too large: %v, want an error that says so", err)
	}
}

// A failing statement is the server's error, with its SQLSTATE, in both forms.
func TestSQLErrorsKeepTheirSQLSTATE(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	execute(t, db, `create table `+db.Schema+`.orders (id text primary key)`)
	execute(t, db, `insert into `+db.Schema+`.orders values ('id-1')`)
	for _, s := range []SQLStatement{
		{Statement: `insert into ` + db.Schema + `.orders select unnest(@ids)`},
		{Statement: `insert into ` + db.Schema + `.orders values (@id)`, Each: true},
	} {
		err := handleSQL(t, db, s, sqlMessage("0"), sqlMessage("1"))
		if got := sqlstate.Code(err); got != sqlstate.UniqueViolation {
			t.Errorf("Each %v: the error is %v (%s), want a unique violation", s.Each, err, got)
		}
	}
}

func TestSQLCheckTellsWhatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	execute(t, db, `create table `+db.Schema+`.orders (id text primary key, total numeric)`)
	for _, tt := range []struct {
		name         string
		statement    SQLStatement
		line, column int
		problem      string
	}{
		{"an unknown table", SQLStatement{Statement: "insert into " + db.Schema + ".ordres\nselect unnest(@ids)"}, 1, 13, "ordres"},
		{"an unknown column", SQLStatement{Statement: "insert into " + db.Schema + ".orders (id, totl)\nvalues (@id, 1)", Each: true}, 1, 0, "totl"},
		{"a syntax error behind names", SQLStatement{Statement: "select @id,\n       @value, from", Each: true}, 2, 0, "syntax error"},
		{"a wrong type", SQLStatement{Statement: "insert into " + db.Schema + ".orders (id, total)\nselect @id,\n  @value", Each: true}, 3, 3, "jsonb"},
		{"two statements", SQLStatement{Statement: "select @id; select 1", Each: true}, 0, 0, "multiple commands"},
		{"a result of a number", SQLStatement{Statement: "select 1 as result, @id", Each: true}, 0, 0, "must be bytea"},
		{"a result in the batch form", SQLStatement{Statement: "select unnest(@ids) as result"}, 0, 0, "use Each"},
		{"what needs no database", SQLStatement{Statement: "select @idd", Each: true}, 1, 8, "did you mean"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.statement.Check(t.Context(), db.Conn())
			var refused *SQLError
			if !errors.As(err, &refused) {
				t.Fatalf("Check = %v, want a *SQLError", err)
			}
			if !strings.Contains(refused.Error(), tt.problem) {
				t.Errorf("the error is %q, want it to hold %q", refused, tt.problem)
			}
			if refused.Line != tt.line || tt.column != 0 && refused.Column != tt.column {
				t.Errorf("it is at line %d, column %d, want %d, %d", refused.Line, refused.Column, tt.line, tt.column)
			}
		})
	}
}

func TestSQLCheckTellsAConnectionProblemAsSuch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn()
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := SQLStatement{Statement: "select @id", Each: true}.Check(t.Context(), conn)
	var refused *SQLError
	if err == nil || errors.As(err, &refused) {
		t.Errorf("Check over a closed connection = %v, want an error that does not blame the statement", err)
	}
}

// sqlBatch is a batch of messages as a busy topic has them.
func sqlBatch(n int) []*Message {
	ms := make([]*Message, n)
	for i := range ms {
		ms[i] = sqlMessage(fmt.Sprintf(`{"order_id":"ord-%09d","customer":{"id":"c-42","name":"Ada Lovelace"},"lines":[{"sku":"SKU-1","qty":2,"price":19.99}],"note":"leave it at the door"}`, i))
		ms[i].Identity.ID = fmt.Sprintf("ord-%09d", i)
		ms[i].Record.Key = []byte(ms[i].Identity.ID)
		ms[i].claim = uuid.UUID{1, 2, 3, byte(i), byte(i >> 8)}
	}
	return ms
}

// What the batch form costs beside the server: checking and encoding.
func BenchmarkSQLBatchEncode(b *testing.B) {
	ms := sqlBatch(500)
	for _, bench := range []struct{ name, statement string }{
		{"values", "select unnest(@values)"},
		{"ids", "select unnest(@ids)"},
		{"claims", "select unnest(@claims)"},
		{"times", "select unnest(@times)"},
		{"headers_list", "select unnest(@headers_list)"},
		{"usual", "insert into o select * from unnest(@ids, @values, @keys, @times)"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			conn, err := pgx.Connect(b.Context(), pgtest.DSN(b))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close(context.Background())
			p, err := planSQL(SQLStatement{Statement: bench.statement})
			if err != nil {
				b.Fatal(err)
			}
			var builder pgx.ExtendedQueryBuilder
			described, err := conn.Prepare(b.Context(), "", strings.Replace(p.text.sql, "insert into o ", "", 1))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, m := range ms {
					if err := p.validate(m); err != nil {
						b.Fatal(err)
					}
				}
				args := make([]any, len(p.params))
				for i, param := range p.params {
					args[i] = param.many(ms)
				}
				if err := builder.Build(conn.TypeMap(), described, args); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*len(ms))/b.Elapsed().Seconds(), "msgs/s")
		})
	}
}
