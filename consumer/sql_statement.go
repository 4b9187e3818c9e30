package consumer

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A SQLStatement is a handler without Go: one statement that makes the effect of a
// message, or of a whole batch. SQL makes a Handler of it.
//
// What the statement takes is named in its text. In the batch form, the fast one,
// each name is an array with one element a message; the arrays are aligned, in the
// messages' order, and hold no id twice:
//
//	insert into orders (id, body)
//	select id, body from unnest(@ids, @values) as m (id, body)
//
// With Each it is run for one message at a time, all messages' runs in one flight:
//
//	insert into orders (id, total) values (@id, (@value->>'total')::numeric)
//
//	Each          batch          type         what
//	@value        @values        jsonb        the value; it must be JSON that jsonb takes
//	@raw          @raws          bytea        the value, byte for byte
//	@text         @texts         text         the value; it must be UTF-8 without NUL
//	@id           @ids           text         the message's id; it must be UTF-8 without NUL
//	@claim        @claims        uuid         the digest of scope and id, as in claimq.claims
//	@key          @keys          bytea        the record key, byte for byte
//	@key_text     @key_texts     text         the record key; it must be UTF-8 without NUL
//	@headers      @headers_list  jsonb        an object: header name to its last value as text
//	@time         @times         timestamptz  the record's time
//	@topic        @topics        text
//	@partition    @partitions    int
//	@offset       @offsets       bigint
//	@tenant       @tenants       text         null where the message has none
//	@operation    @operations    text         null where the message has none
//
// A null value (a tombstone) is SQL null, also for @value; the JSON text null is
// the jsonb null. A null key is null. In @headers a value that is null, or that no
// text column could hold, is JSON null, and a header whose name no text column
// could hold is left out. @time is null for a record without a time.
//
// A message that is not what the statement asks for fails before the statement
// runs, by name and for good: it is dead with the error class undecodable. When
// the statement itself fails, Each names the message; the batch form's culprit is
// looked for by running the statement with parts of the batch.
type SQLStatement struct {
	// Statement is the text, in the SQL of Postgres: one insert, update, delete,
	// merge, select, call, or one of them after with. Names stand for themselves
	// outside of string literals, comments and quoted identifiers only; positional
	// parameters ($1) are refused.
	//
	// In the Each form a returned column named result, of type bytea, text, json or
	// jsonb, is left as the message's result (Message.SetResult): the statement then
	// returns at most one row.
	Statement string
	// Each runs the statement once a message. Default: once a batch.
	Each bool
	// Effects are published for each message that the statement has been run for.
	Effects []SQLEffect
}

// SQL returns a Handler for a statement. The text is resolved here, once; an error
// is a *SQLError and says what is wrong with it as far as that can be told without
// a database. Check asks a database the rest.
func SQL(s SQLStatement) (Handler, error) {
	p, err := planSQL(s)
	if err != nil {
		return Handler{}, err
	}
	if s.Each {
		return Handler{kind: kindPipelined, pipelined: p.queue, validate: p.validate}, nil
	}
	return Handler{kind: kindBatch, batch: p.run, validate: p.validate}, nil
}

// A sqlPlan is a statement whose names have been resolved. It is immutable.
type sqlPlan struct {
	text    rewritten
	params  []*sqlParam              // by their number less one
	checks  []func(m *Message) error // what must hold of a message, each once
	effects []SQLEffect
}

func planSQL(s SQLStatement) (*sqlPlan, error) {
	text, err := rewriteSQL(s.Statement, s.Each)
	if err != nil {
		return nil, err
	}
	if err := checkSQLEffects(s.Effects); err != nil {
		return nil, err
	}
	p := &sqlPlan{text: text, effects: slices.Clone(s.Effects)}
	for _, name := range text.names {
		param := findParam(name, s.Each)
		p.params = append(p.params, param)
		if param.check != nil {
			p.checks = append(p.checks, param.check)
		}
	}
	if !s.Each && len(p.params) == 0 {
		return nil, &SQLError{Problem: "the statement takes nothing of the messages, so it would do the same for every batch: use arrays as @ids and @values, or Each"}
	}
	return p, nil
}

// validate is run for each message before the handler sees it.
func (p *sqlPlan) validate(m *Message) error {
	for _, check := range p.checks {
		if err := check(m); err != nil {
			return Permanent(err)
		}
	}
	return nil
}

func (p *sqlPlan) run(ctx context.Context, tx pgx.Tx, ms []*Message) error {
	for i, m := range ms {
		if err := p.emit(m); err != nil {
			return FailedAt(i, err)
		}
	}
	args := make([]any, len(p.params))
	for i, param := range p.params {
		args[i] = param.many(ms)
	}
	_, err := tx.Exec(ctx, p.text.sql, args...)
	return err
}

func (p *sqlPlan) queue(_ context.Context, b *pgx.Batch, m *Message) error {
	args := make([]any, len(p.params))
	for i, param := range p.params {
		args[i] = param.one(m)
	}
	b.Queue(p.text.sql, args...).Query(func(rows pgx.Rows) error { return takeResult(rows, m) })
	return p.emit(m)
}

// takeResult reads what a statement returned for a message. The columns are looked
// at after the first row only: when the statement has failed there are none, and
// pgx does not stand being asked.
func takeResult(rows pgx.Rows, m *Message) error {
	taken := false
	for rows.Next() {
		fields := rows.FieldDescriptions()
		at := resultColumn(fields)
		if at < 0 {
			continue
		}
		if taken {
			return Permanent(fmt.Errorf("the statement returned a column named %s in more than one row for one message", resultName))
		}
		taken = true
		var value []byte
		targets := make([]any, len(fields)) // nil: a column that is not read
		targets[at] = &value
		if err := rows.Scan(targets...); err != nil {
			return Permanent(fmt.Errorf("the column named %s: %w", resultName, err))
		}
		if value == nil {
			continue
		}
		if err := m.SetResult(value); err != nil {
			return Permanent(err)
		}
	}
	return rows.Err()
}
