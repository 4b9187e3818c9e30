package claimsimport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/dedup"
)

// Options say what is imported. Queue is required.
type Options struct {
	// Queue is the name of the queue that the ids are claimed for.
	Queue string
	// Tenant and Operation are the scope of lines that do not name their own; nil: none.
	Tenant, Operation *string
	// Format is how lines are written. Default: Auto.
	Format Format
	// Chunk is how many lines are claimed in one transaction. Default 1000.
	Chunk int
	// Progress, when set, is called after each transaction.
	Progress func(Report)
}

// A Report counts what has been committed.
type Report struct {
	// Lines is the number of the last line of which all is done.
	Lines int `json:"lines"`
	// New ids are claimed now, Already were before, or stand in the list twice.
	New     int `json:"new"`
	Already int `json:"already"`
	// Conflicts were claimed before with another fingerprint: the claim stays as it was.
	Conflicts int `json:"conflicts"`
}

// maxLine is the longest line, in bytes.
const maxLine = 1 << 20

// Import claims the ids of a list, a chunk in each transaction. Every transaction
// holds its claims as a whole or not at all. After an error the report tells up to
// which line all is done; the list can be imported again from anywhere before,
// since an id that is claimed already is no error. A line that cannot be read is a
// *LineError, and none of its chunk is claimed.
func Import(ctx context.Context, db dedup.Beginner, store *dedup.Store, list io.Reader, o Options) (Report, error) {
	if o.Chunk <= 0 {
		o.Chunk = 1000
	}
	i := importer{options: o, db: db, store: store}
	lines := bufio.NewScanner(list)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	for lines.Scan() {
		if err := i.line(ctx, lines.Bytes()); err != nil {
			return i.report, err
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("it is longer than %d bytes", maxLine)
		}
		return i.report, &LineError{Line: i.read + 1, Err: err}
	}
	return i.report, i.flush(ctx)
}

type importer struct {
	options  Options
	db       dedup.Beginner
	store    *dedup.Store
	format   Format
	read     int // lines
	requests []dedup.Request
	report   Report
}

// byteOrderMark begins files of some editors.
var byteOrderMark = []byte("\ufeff")

func (i *importer) line(ctx context.Context, line []byte) error {
	i.read++
	if i.read == 1 {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	if i.format == Auto {
		if i.format = i.options.Format; i.format == Auto {
			i.format = formatOf(line)
		}
	}
	request, err := i.options.request(i.format, line)
	if err != nil {
		return &LineError{Line: i.read, Err: err}
	}
	i.requests = append(i.requests, request)
	if len(i.requests) < i.options.Chunk {
		return nil
	}
	return i.flush(ctx)
}

// flush claims what has been read.
func (i *importer) flush(ctx context.Context) error {
	report := i.report
	report.Lines = i.read
	if len(i.requests) > 0 {
		err := pgx.BeginTxFunc(ctx, i.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			outcomes, err := i.store.Claim(ctx, tx, i.requests...)
			for _, outcome := range outcomes {
				switch outcome.Kind {
				case dedup.Claimed:
					report.New++
				case dedup.Conflict:
					report.Conflicts++
				case dedup.Duplicate:
					report.Already++
				}
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("claim the lines from %d to %d: %w", i.report.Lines+1, i.read, err)
		}
	}
	i.report, i.requests = report, i.requests[:0]
	if i.options.Progress != nil {
		i.options.Progress(i.report)
	}
	return nil
}
