package jsonbcheck_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/internal/jsonbcheck"
	"github.com/claimq/claimq/internal/pgtest"
)

// A server answers what Postgres does with a value in a jsonb[] parameter. It may
// be used by several tests at once.
type server struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

func newServer(t testing.TB) *server {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatalf("connect to the test server: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &server{conn: conn}
}

// refusal returns the server's error for a value, nil when it takes it. Two more
// elements show that nothing runs over into the neighbours.
func (s *server) refusal(t failer, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var count int
	err := s.conn.QueryRow(context.Background(), "select cardinality($1::jsonb[])", [][]byte{[]byte("1"), value, []byte("{}")}).Scan(&count)
	var refused *pgconn.PgError
	if err != nil && !errors.As(err, &refused) {
		t.Fatalf("ask the server about %.200q: %v", value, err)
	}
	if err == nil && count != 3 {
		t.Fatalf("the server found %d elements with %.200q between two others, want 3", count, value)
	}
	return err
}

type failer interface {
	Fatalf(format string, args ...any)
}

func compare(t failer, s *server, value []byte) {
	if value == nil {
		return // null: an element that is no value
	}
	checked := jsonbcheck.Check(value)
	if checked != nil && stricter(value, checked) {
		return
	}
	asked := s.refusal(t, value)
	switch {
	case checked == nil && asked != nil:
		t.Fatalf("Check takes %.200q and the server refuses it: %v", value, asked)
	case checked != nil && asked == nil:
		t.Fatalf("Check refuses %.200q (%v) and the server takes it", value, checked)
	}
}

// stricter reports whether a refusal may be one of the three that the package
// documents as its own.
func stricter(value []byte, err error) bool {
	var refused *jsonbcheck.RefusedError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Reason {
	case "longer than 32 MiB", "nested more than 512 deep":
		return true
	case "a number outside the range of numeric":
		return strings.HasPrefix(strings.TrimPrefix(string(value[refused.Offset:]), "-"), "0")
	}
	return false
}

func TestServerAgreesOnTheVectors(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) { compare(t, s, []byte(v.value)) })
	}
}

func TestServerAgreesOnRandomTexts(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	rapid.Check(t, func(t *rapid.T) { compare(t, s, drawText(t)) })
}

// MaxBytes keeps the stored form under the server's bound whatever the text is made
// of. The texts here are a small part as long, since the whole length takes a server
// half a minute and a gigabyte; the stored form grows in step with them.
func TestMaxBytesKeepsTheDensestTextsUnderTheServersBound(t *testing.T) {
	t.Parallel()
	const (
		part    = 128
		longest = 1<<28 - 1 // of the stored form (JENTRY_OFFLENMASK)
		most    = 1<<30 - 1 // of one piece of memory (MaxAllocSize)
		element = 32        // sizeof (JsonbValue) while the text is read
	)
	s := newServer(t)
	for _, piece := range []string{`1,`, `0,`, `-1,`, `1e9,`, `1e-9999,`, `"",`, `"a",`, `[],`, `{},`, `[1],`, `null,`, `{"":1},`} {
		text := "[" + strings.Repeat(piece, jsonbcheck.MaxBytes/part/len(piece)-2) + "1]"
		if err := jsonbcheck.Check([]byte(text)); err != nil {
			t.Fatalf("Check refuses many %s: %v", piece, err)
		}
		var stored, elements int64
		if err := s.conn.QueryRow(t.Context(), "select pg_column_size($1::jsonb), jsonb_array_length($1::jsonb)", text).Scan(&stored, &elements); err != nil {
			t.Fatalf("the server refuses many %s: %v", piece, err)
		}
		if stored*part > longest {
			t.Errorf("MaxBytes of %s would be stored in %d bytes, over %d", piece, stored*part, longest)
		}
		room := int64(4) // the server doubles its list
		for room < elements*part {
			room *= 2
		}
		if room*element > most {
			t.Errorf("MaxBytes of %s would need a list of %d bytes, over %d", piece, room*element, most)
		}
	}
}

// MaxDepth must hold where an administrator has set the smallest stack.
func TestServerTakesMaxDepthWithTheSmallestStack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	if _, err := s.conn.Exec(t.Context(), "set max_stack_depth = '100kB'"); err != nil {
		t.Fatalf("set max_stack_depth: %v", err)
	}
	for _, brackets := range [][2]string{{"[", "]"}, {`{"k":`, "}"}} {
		value := strings.Repeat(brackets[0], jsonbcheck.MaxDepth-1) + "[]" + strings.Repeat(brackets[1], jsonbcheck.MaxDepth-1)
		if err := jsonbcheck.Check([]byte(value)); err != nil {
			t.Fatalf("Check refuses %d levels: %v", jsonbcheck.MaxDepth, err)
		}
		if err := s.refusal(t, []byte(value)); err != nil {
			t.Errorf("the server refuses %d levels of %q: %v", jsonbcheck.MaxDepth, brackets[0], err)
		}
	}
}

func FuzzCheckAgainstServer(f *testing.F) {
	for _, v := range vectors {
		f.Add([]byte(v.value))
	}
	s := newServer(f)
	f.Fuzz(func(t *testing.T, value []byte) { compare(t, s, value) })
}
