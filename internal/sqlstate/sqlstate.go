// Package sqlstate classifies what Postgres and the way to it can answer: the one
// table of SQLSTATEs in claimq. Nothing here looks at an error's text.
package sqlstate

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// The codes that claimq's own functions raise.
const (
	// Fenced: another worker owns the partition. Detail lists topic/partition.
	Fenced = "CQ001"
	// PhaseChanged: the claim segments have rolled since the flight was planned.
	PhaseChanged = "CQ002"
	// LeaseLost: a delayed item's lease was taken by another worker.
	LeaseLost = "CQ003"
	// IncarnationChanged: the server is not the one that the worker's memory is of.
	IncarnationChanged = "CQ004"
)

// Codes of Postgres that claimq looks for by name.
const (
	UniqueViolation     = "23505"
	InFailedTransaction = "25P02"
	LockNotAvailable    = "55P03"
	QueryCanceled       = "57014"
	DuplicateSchema     = "42P06"
	UndefinedTable      = "42P01"
	InvalidSchema       = "3F000"
	InvalidPassword     = "28P01"
	InsufficientRights  = "42501"
)

// Code returns the SQLSTATE of err, or "" when the server sent none.
func Code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// infrastructure lists what is never a message's fault: by class (two
// characters) or by whole code.
var infrastructure = map[string]bool{
	"08":    true, // connection exceptions
	"53":    true, // insufficient resources: disk full, out of memory, too many connections
	"58":    true, // system errors outside the server: I/O
	"XX":    true, // internal errors, corrupted data
	"25006": true, // read-only transaction: a failover's old primary
	"25P03": true, // idle-in-transaction timeout: the worker was frozen
	"25P04": true, // transaction timeout (17+)
	"40001": true, // serialization failure
	"40P01": true, // deadlock detected
	"55P03": true, // lock timeout
	"57P01": true, // terminated by an administrator
	"57P02": true, // crash shutdown
	"57P03": true, // cannot connect now: starting up, recovering
	"57P04": true, // database dropped
	"57P05": true, // idle session timeout
	"CQ001": true,
	"CQ002": true,
	"CQ003": true,
	"CQ004": true,
}

// Infrastructure reports whether err is the doing of the database server, of the
// network or of other transactions, and so never the fault of the message that
// met it: it is retried in place, uses no attempt and never fills the delay queue
// or the dead letters. A context's own error is not judged here: only the caller
// knows whose deadline it was.
func Infrastructure(err error) bool {
	if err == nil {
		return false
	}
	if code := Code(err); code != "" {
		return infrastructure[code] || len(code) == 5 && infrastructure[code[:2]]
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	return Disconnected(err)
}

// Disconnected reports whether err says that the connection was lost, so that
// what the server made of the last request is not known.
func Disconnected(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return true
	}
	var netErr net.Error
	if errors.As(err, &netErr) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return true
	}
	code := Code(err)
	return strings.HasPrefix(code, "08") || code == "57P01" || code == "57P02"
}
