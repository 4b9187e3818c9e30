package dlq_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
)

// Null against empty, binary headers that repeat, an order key: out of one database,
// into another and out of that one, the lines are the same.
func TestExportedLettersAreTheSameAfterImport(t *testing.T) {
	t.Parallel()
	from, to := newWorld(t), newWorld(t)
	tenant := ""
	from.dead(150, func(i int, l *dlq.Letter) {
		l.Record.Timestamp = time.UnixMilli(1_700_000_000_000 + int64(i))
		switch i % 4 {
		case 0:
			l.Record.Key, l.Record.Value = nil, []byte{}
		case 1:
			l.Record.Key, l.Record.Value = []byte{}, nil
		case 2:
			l.Tenant, l.Stack, l.OrderKey = &tenant, "a stack\nof two lines", uuid.New()
			l.Record.Headers = []kgo.RecordHeader{{Key: "\xff", Value: []byte{0, 1}}, {Key: "\xff", Value: nil}, {Key: "", Value: []byte{}}}
		case 3:
			l.Source = nil
		}
	})
	from.exec(`update claimq.dead_letters set overtaken_at = now() where id = (select min(id::text)::uuid from claimq.dead_letters)`)
	export := func(w *world) string {
		var out bytes.Buffer
		n, err := w.store.Export(w.ctx(), w.db.Pool, dlq.Selection{}, &out)
		w.must(err)
		if n != 150 || strings.Count(out.String(), "\n") != 150 {
			t.Fatalf("%d letters were exported in %d lines", n, strings.Count(out.String(), "\n"))
		}
		return out.String()
	}
	lines := export(from)
	done, err := to.store.Import(to.ctx(), to.db.Pool, strings.NewReader(lines), ada)
	to.must(err)
	if diff := cmp.Diff(dlq.Imported{Stored: 150}, done); diff != "" {
		t.Errorf("imported (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(lines, export(to)); diff != "" {
		t.Errorf("after the import (-want +got):\n%s", diff)
	}
	again, err := to.store.Import(to.ctx(), to.db.Pool, strings.NewReader(lines), ada)
	to.must(err)
	if diff := cmp.Diff(dlq.Imported{Known: 150}, again); diff != "" {
		t.Errorf("imported again (-want +got):\n%s", diff)
	}
	if n := get[int](to, `select count(*) from claimq.audit where action = 'dlq import'`); n != 150 {
		t.Errorf("the audit tells of %d imports", n)
	}
}

func TestImportNamesTheLineThatItCannotTake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, line := range map[string]string{
		"not JSON": "x", "not a letter": `{"id": 1}`, "a later version": `{"claimq_letter": 2, "queue": "orders"}`,
		"a queue that is not here": `{"claimq_letter": 1, "queue": "elsewhere"}`, "a half letter": `{"claimq_letter": 1, "queue": "orders"}`,
	} {
		_, err := w.store.Import(w.ctx(), w.db.Pool, strings.NewReader("\n"+line+"\n"), ada)
		var wrong *dlq.ImportError
		if !errors.As(err, &wrong) || wrong.Line != 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
