package consumer

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/claimq/claimq/internal/sqlstate"
)

// handlerTx is the transaction that handlers see: everything works but ending it,
// and it remembers when the infrastructure failed under a handler that then returns
// an error of its own making.
type handlerTx struct {
	tx     pgx.Tx
	nested bool       // made by Begin: it may be committed and rolled back, as a savepoint
	outer  *handlerTx // the one that failures are noted in
	infra  error      // the first failure of the infrastructure seen through it
}

var _ pgx.Tx = (*handlerTx)(nil)

func (t *handlerTx) note(err error) error {
	at := t
	if t.outer != nil {
		at = t.outer
	}
	if at.infra == nil && sqlstate.Infrastructure(err) {
		at.infra = err
	}
	return err
}

// Begin starts a pseudo nested transaction: a savepoint.
func (t *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := t.tx.Begin(ctx)
	if err != nil {
		return nil, t.note(err)
	}
	outer := t
	if t.outer != nil {
		outer = t.outer
	}
	return &handlerTx{tx: inner, nested: true, outer: outer}, nil
}

// Commit releases a nested transaction's savepoint; the outer one refuses.
func (t *handlerTx) Commit(ctx context.Context) error {
	if !t.nested {
		return ErrTransactionControl
	}
	return t.note(t.tx.Commit(ctx))
}

// Rollback undoes a nested transaction. The outer one refuses, but says that it is
// closed, as a deferred Rollback expects.
func (t *handlerTx) Rollback(ctx context.Context) error {
	if !t.nested {
		return ErrTransactionControl
	}
	return t.note(t.tx.Rollback(ctx))
}

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	n, err := t.tx.CopyFrom(ctx, table, columns, source)
	return n, t.note(err)
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if controlsTransaction(q.SQL) {
			return refusedBatch{}
		}
	}
	return &notedBatch{BatchResults: t.tx.SendBatch(ctx, b), tx: t}
}

func (t *handlerTx) LargeObjects() pgx.LargeObjects { return t.tx.LargeObjects() }

func (t *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if controlsTransaction(sql) {
		return nil, ErrTransactionControl
	}
	description, err := t.tx.Prepare(ctx, name, sql)
	return description, t.note(err)
}

func (t *handlerTx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if controlsTransaction(sql) {
		return pgconn.CommandTag{}, ErrTransactionControl
	}
	tag, err := t.tx.Exec(ctx, sql, arguments...)
	return tag, t.note(err)
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if controlsTransaction(sql) {
		return refusedRows{}, ErrTransactionControl
	}
	rows, err := t.tx.Query(ctx, sql, args...)
	if err != nil {
		return rows, t.note(err)
	}
	return &notedRows{Rows: rows, tx: t}, nil
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if controlsTransaction(sql) {
		return refusedRows{}
	}
	return notedRow{row: t.tx.QueryRow(ctx, sql, args...), tx: t}
}

// Conn returns the connection itself, for what pgx.Tx has no method for. Ending
// the transaction through it is noticed afterwards and fails the message.
func (t *handlerTx) Conn() *pgx.Conn { return t.tx.Conn() }

type notedRows struct {
	pgx.Rows
	tx *handlerTx
}

func (r *notedRows) Err() error { return r.tx.note(r.Rows.Err()) }

type notedRow struct {
	row pgx.Row
	tx  *handlerTx
}

func (r notedRow) Scan(dest ...any) error { return r.tx.note(r.row.Scan(dest...)) }

type notedBatch struct {
	pgx.BatchResults
	tx *handlerTx
}

func (b *notedBatch) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	return tag, b.tx.note(err)
}

func (b *notedBatch) Query() (pgx.Rows, error) {
	rows, err := b.BatchResults.Query()
	return rows, b.tx.note(err)
}

func (b *notedBatch) QueryRow() pgx.Row { return notedRow{row: b.BatchResults.QueryRow(), tx: b.tx} }
func (b *notedBatch) Close() error      { return b.tx.note(b.BatchResults.Close()) }

// refusedBatch answers every question with ErrTransactionControl.
type refusedBatch struct{}

func (refusedBatch) Exec() (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, ErrTransactionControl
}
func (refusedBatch) Query() (pgx.Rows, error) { return refusedRows{}, ErrTransactionControl }
func (refusedBatch) QueryRow() pgx.Row        { return refusedRows{} }
func (refusedBatch) Close() error             { return ErrTransactionControl }
func (refusedBatch) Tx() pgx.Tx               { return nil }

type refusedRows struct{ pgx.Rows }

func (refusedRows) Close()                        {}
func (refusedRows) Err() error                    { return ErrTransactionControl }
func (refusedRows) Next() bool                    { return false }
func (refusedRows) Scan(...any) error             { return ErrTransactionControl }
func (refusedRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// controlsTransaction reports whether SQL text would end the transaction, nest
// savepoints of its own or change the session behind it: COMMIT, ROLLBACK,
// SAVEPOINT, SET without LOCAL and their like, as any of its statements. It reads
// the first words of each statement and skips comments and quoted text. Whatever
// gets past it is found by the transaction's status afterwards.
func controlsTransaction(sql string) bool {
	for rest := sql; ; {
		rest = skipSpace(rest)
		word, after := nextWord(rest)
		switch word {
		case "begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release",
			"reset", "discard", "listen", "unlisten", "deallocate":
			return true
		case "prepare":
			next, _ := nextWord(skipSpace(after))
			if next == "transaction" {
				return true
			}
		case "set":
			next, _ := nextWord(skipSpace(after))
			if next != "local" && next != "constraints" {
				return true
			}
		}
		var more bool
		if rest, more = nextStatement(rest); !more {
			return false
		}
	}
}

// nextWord returns the leading word in lower case, and what follows it.
func nextWord(text string) (word, rest string) {
	n := 0
	for n < len(text) && n < 16 && isLetter(text[n]) {
		n++
	}
	return strings.ToLower(text[:n]), text[n:]
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }

// skipSpace passes white space, comments and empty statements.
func skipSpace(text string) string {
	for {
		text = strings.TrimLeft(text, " \t\r\n\f\v;(")
		switch {
		case strings.HasPrefix(text, "--"):
			end := strings.IndexByte(text, '\n')
			if end < 0 {
				return ""
			}
			text = text[end:]
		case strings.HasPrefix(text, "/*"):
			text = skipComment(text)
		default:
			return text
		}
	}
}

// skipComment passes a comment, which may hold others.
func skipComment(text string) string {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return text[i+1:]
			}
		}
	}
	return ""
}

// nextStatement returns what stands behind the next semicolon outside quotes.
func nextStatement(text string) (rest string, ok bool) {
	if strings.IndexByte(text, ';') < 0 {
		return "", false
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == ';':
			return text[i+1:], true
		case c == '\'' || c == '"':
			end := quoteEnd(text[i+1:], c, c == '\'' && escapes(text[:i]))
			if end < 0 {
				return "", false
			}
			i += end + 1
		case c == '$':
			i += dollarQuoted(text[i:])
		case strings.HasPrefix(text[i:], "--"):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return "", false
			}
			i += end
		case strings.HasPrefix(text[i:], "/*"):
			i = len(text) - len(skipComment(text[i:])) - 1
		}
	}
	return "", false
}

// quoteEnd returns where a quoted text ends, -1 when it does not. A doubled quote ends
// it and begins another, which comes to the same.
func quoteEnd(text string, quote byte, backslashes bool) int {
	for i := 0; i < len(text); i++ {
		switch {
		case backslashes && text[i] == '\\':
			i++
		case text[i] == quote:
			return i
		}
	}
	return -1
}

// escapes reports whether a quote behind text opens an E'…' string, in which a
// backslash escapes.
func escapes(text string) bool {
	n := len(text)
	return n > 0 && text[n-1]|0x20 == 'e' && (n == 1 || !isLetter(text[n-2]) && (text[n-2] < '0' || text[n-2] > '9'))
}

// dollarQuoted returns by how much to advance over a $tag$…$tag$ string that text
// begins with, and 0 when it begins with none.
func dollarQuoted(text string) int {
	tagEnd := strings.IndexByte(text[1:], '$')
	if tagEnd < 0 {
		return 0
	}
	tag := text[:tagEnd+2]
	for _, c := range []byte(tag[1 : len(tag)-1]) {
		if !isLetter(c) && (c < '0' || c > '9') {
			return 0
		}
	}
	end := strings.Index(text[len(tag):], tag)
	if end < 0 {
		return len(text) - 1
	}
	return len(tag) + end + len(tag) - 1
}
