package sqlstate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/claimq/claimq/internal/sqlstate"
)

func server(code string) error { return &pgconn.PgError{Code: code, Message: "any words"} }

func TestWhatIsNeverTheMessagesFault(t *testing.T) {
	t.Parallel()
	for _, code := range []string{
		"08000", "08006", "08P01", "53100", "53200", "53300", "58030", "XX000", "25006", "25P03", "40001", "40P01", "55P03",
		"57P01", "57P02", "57P03", "57P05", "CQ001", "CQ002", "CQ003", "CQ004",
	} {
		if !sqlstate.Infrastructure(fmt.Errorf("wrapped: %w", server(code))) {
			t.Errorf("%s counts against the message", code)
		}
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, &net.OpError{Op: "read", Err: errors.New("reset")}, &pgconn.ConnectError{}} {
		if !sqlstate.Infrastructure(fmt.Errorf("wrapped: %w", err)) {
			t.Errorf("%v counts against the message", err)
		}
	}
}

func TestWhatIsTheMessagesFault(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"23505", "23503", "22P02", "22003", "42P01", "25P02", "57014", "P0001", "40002", "55000", "0A000"} {
		if sqlstate.Infrastructure(server(code)) {
			t.Errorf("%s never counts against a message, and would be tried in place for ever", code)
		}
	}
	for _, err := range []error{nil, errors.New("boom"), context.Canceled, context.DeadlineExceeded} {
		if sqlstate.Infrastructure(err) {
			t.Errorf("%v is judged without knowing whose deadline it was", err)
		}
	}
}

// An error that the server sent before it went on living proves that nothing was
// committed; one that says the session is gone proves nothing.
func TestWhatLeavesACommitUnknown(t *testing.T) {
	t.Parallel()
	for _, err := range []error{io.EOF, net.ErrClosed, server("08006"), server("57P01"), server("57P02")} {
		if !sqlstate.Disconnected(err) {
			t.Errorf("%v is taken for an answer", err)
		}
	}
	for _, err := range []error{server("23505"), server("40001"), server("CQ001"), server("57014")} {
		if sqlstate.Disconnected(err) {
			t.Errorf("%v is taken for a lost connection", err)
		}
	}
}

func TestCodeLooksThroughWrapping(t *testing.T) {
	t.Parallel()
	if got := sqlstate.Code(fmt.Errorf("a: %w", fmt.Errorf("b: %w", server("23505")))); got != "23505" {
		t.Errorf("code %q", got)
	}
	if got := sqlstate.Code(errors.New("SQLSTATE 23505")); got != "" {
		t.Errorf("code %q was read from text", got)
	}
}
