package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// resultName is the returned column that becomes a message's result.
const resultName = "result"

// resultTypes are the types that a result may have: those of which pgx gives the
// bytes as they are.
var resultTypes = []uint32{pgtype.ByteaOID, pgtype.TextOID, pgtype.VarcharOID, pgtype.JSONOID, pgtype.JSONBOID}

// Check asks the database to prepare the statement, which tells of unknown tables
// and columns, wrong types and syntax errors before the first message is read. It
// runs nothing, locks nothing beyond the moment and works through a transaction
// pooler. What is wrong with the statement is a *SQLError; other errors are those
// of the connection.
func (s SQLStatement) Check(ctx context.Context, conn *pgx.Conn) error {
	p, err := planSQL(s)
	if err != nil {
		return err
	}
	prepared, err := conn.Prepare(ctx, "", p.text.sql)
	if err != nil {
		var refused *pgconn.PgError
		if !errors.As(err, &refused) {
			return fmt.Errorf("prepare the SQL statement: %w", err)
		}
		return p.text.refusal(refused)
	}
	at := resultColumn(prepared.Fields)
	switch {
	case at < 0:
		return nil
	case !s.Each:
		return &SQLError{Problem: fmt.Sprintf("a statement for a batch cannot leave results: return no column named %s, or use Each", resultName)}
	case !slices.Contains(resultTypes, prepared.Fields[at].DataTypeOID):
		return &SQLError{Problem: fmt.Sprintf("the column named %s must be bytea, text, json or jsonb: cast it", resultName)}
	}
	return nil
}

// refusal names the place in the statement as it was written.
func (r *rewritten) refusal(refused *pgconn.PgError) error {
	problem := refused.Message
	if refused.Hint != "" {
		problem += " (" + refused.Hint + ")"
	}
	problem += " [SQLSTATE " + refused.Code + "]"
	if refused.Position == 0 {
		return &SQLError{Problem: problem, Err: refused}
	}
	return r.errorAt(r.sourceAt(int(refused.Position)), problem, refused)
}

func resultColumn(fields []pgconn.FieldDescription) int {
	return slices.IndexFunc(fields, func(f pgconn.FieldDescription) bool { return f.Name == resultName })
}
