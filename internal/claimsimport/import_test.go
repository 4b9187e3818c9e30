package claimsimport_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/claimsimport"
	"github.com/claimq/claimq/internal/pgtest"
)

type fixture struct {
	*pgtest.DB
	t     *testing.T
	store *dedup.Store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `insert into `+db.Schema+`.queues (name, group_name, rule) values ('orders', 'orders', 'r')`); err != nil {
		t.Fatal(err)
	}
	return &fixture{DB: db, t: t, store: dedup.New(dedup.Config{Schema: db.Schema})}
}

func (f *fixture) load(list string, o claimsimport.Options) (claimsimport.Report, error) {
	f.t.Helper()
	o.Queue = "orders"
	return claimsimport.Import(f.t.Context(), f.Pool, f.store, strings.NewReader(list), o)
}

func (f *fixture) mustLoad(list string, o claimsimport.Options) claimsimport.Report {
	f.t.Helper()
	report, err := f.load(list, o)
	if err != nil {
		f.t.Fatalf("Import: %v", err)
	}
	return report
}

func (f *fixture) find(identity dedup.Identity) *dedup.ClaimRecord {
	f.t.Helper()
	identity.Queue = "orders"
	found, err := f.store.Find(f.t.Context(), f.Pool, identity)
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

func (f *fixture) claims() (n int) {
	f.t.Helper()
	if err := f.Pool.QueryRow(f.t.Context(), "select count(*) from "+f.Schema+".claims").Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

func TestImportOfIDs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tenant := "acme"
	report := f.mustLoad("\ufeffa\nb\r\n\n  \n c \na\n{not json\n", claimsimport.Options{Tenant: &tenant})
	if diff := cmp.Diff(claimsimport.Report{Lines: 7, New: 4, Already: 1}, report); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
	for _, id := range []string{"a", "b", " c ", "{not json"} {
		if f.find(dedup.Identity{Tenant: &tenant, ID: id}) == nil {
			t.Errorf("the id %q is not claimed", id)
		}
		if f.find(dedup.Identity{ID: id}) != nil {
			t.Errorf("the id %q is claimed outside of its tenant", id)
		}
	}
	if report := f.mustLoad("a\nb\nd\n", claimsimport.Options{Tenant: &tenant}); report.New != 1 || report.Already != 2 {
		t.Errorf("the second import: %+v, want 1 new and 2 already", report)
	}
}

func TestImportOfJSON(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tenant, other, operation := "acme", "other", "ship"
	fingerprint := uuid.New()
	list := `
{"id": "a"}
{"id": "a", "tenant": "other", "operation": null, "at": "2026-01-02T03:04:05Z"}
{"id": "é\u0000", "operation": "ship"}
{"id": "f", "fingerprint": "` + fingerprint.String() + `", "fingerprint_version": 1}
`
	report := f.mustLoad(list, claimsimport.Options{Tenant: &tenant})
	if diff := cmp.Diff(claimsimport.Report{Lines: 5, New: 4}, report); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
	if f.find(dedup.Identity{Tenant: &tenant, ID: "a"}) == nil || f.find(dedup.Identity{Tenant: &tenant, Operation: &operation, ID: "é\x00"}) == nil {
		t.Error("an id is not claimed under its tenant and operation")
	}
	if found := f.find(dedup.Identity{Tenant: &other, ID: "a"}); found == nil || !found.RecordAt.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("the claim with a time of its own is %+v", found)
	}
	if found := f.find(dedup.Identity{Tenant: &tenant, ID: "f"}); found == nil || found.Fingerprint != fingerprint || found.FingerprintVersion != 1 || found.First != nil {
		t.Errorf("the claim with a fingerprint is %+v", found)
	}
	list = `{"id": "f", "fingerprint": "` + uuid.NewString() + `", "fingerprint_version": 1}`
	if report := f.mustLoad(list, claimsimport.Options{Tenant: &tenant}); report.Conflicts != 1 || report.New != 0 {
		t.Errorf("another fingerprint for a claimed id: %+v, want a conflict", report)
	}
}

func TestImportNamesTheLine(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, tt := range []struct{ line, problem string }{
		{`{"id": "x"`, "no JSON object"},
		{`"x"`, "no JSON object"},
		{`{"id": "x"} trailing`, "no JSON object"},
		{`{"tenant": "x"}`, `"id" is missing or empty`},
		{`{"id": ""}`, `"id" is missing or empty`},
		{`{"id": null}`, `"id" is missing or empty`},
		{`{"id": 17}`, `"id" is a number`},
		{`{"id": "x", "tennant": "y"}`, `did you mean "tenant"?`},
		{`{"id": "x", "fingerprint": "zz", "fingerprint_version": 1}`, "a member cannot be read"},
		{`{"id": "x", "fingerprint": "00000000-0000-0000-0000-000000000001"}`, "belong together"},
		{`{"id": "x", "fingerprint_version": 1}`, "belong together"},
		{`{"id": "x", "at": "yesterday"}`, "a member cannot be read"},
		{`{"id": "x", "at": "2999-01-01T00:00:00Z"}`, "yet to come"},
	} {
		_, err := f.load(`{"id": "before"}`+"\n\n"+tt.line+"\n", claimsimport.Options{Format: claimsimport.JSON})
		var wrong *claimsimport.LineError
		if !errors.As(err, &wrong) || wrong.Line != 3 || !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%s: %v, want line 3 and %q", tt.line, err, tt.problem)
		}
	}
	if n := f.claims(); n != 0 {
		t.Errorf("%d claims are made, want none: a chunk with a wrong line is not claimed", n)
	}
	_, err := f.load("a\n"+strings.Repeat("x", 2<<20)+"\n", claimsimport.Options{})
	var wrong *claimsimport.LineError
	if !errors.As(err, &wrong) || wrong.Line != 2 {
		t.Errorf("a line of 2 MiB: %v, want line 2", err)
	}
}

func TestImportGoesOnFromWhereItStopped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var lines []string
	for i := range 25 {
		lines = append(lines, fmt.Sprintf(`{"id": "o-%d"}`, i))
	}
	broken := slices.Clone(lines)
	broken[17] = "{}"
	var progress []int
	report, err := f.load(strings.Join(broken, "\n"), claimsimport.Options{Chunk: 5, Progress: func(r claimsimport.Report) { progress = append(progress, r.Lines) }})
	var wrong *claimsimport.LineError
	if !errors.As(err, &wrong) || wrong.Line != 18 {
		t.Fatalf("Import = %v, want line 18", err)
	}
	if diff := cmp.Diff(claimsimport.Report{Lines: 15, New: 15}, report); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{5, 10, 15}, progress); diff != "" {
		t.Errorf("the progress (-want +got):\n%s", diff)
	}
	if n := f.claims(); n != 15 {
		t.Errorf("%d claims are made, want 15", n)
	}
	if report := f.mustLoad(strings.Join(lines, "\n"), claimsimport.Options{Chunk: 5}); report.New != 10 || report.Already != 15 || report.Lines != 25 {
		t.Errorf("the list again: %+v, want 10 new and 15 already", report)
	}
}

func TestImportStopsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := claimsimport.Options{Queue: "orders", Chunk: 1, Progress: func(claimsimport.Report) { cancel() }}
	report, err := claimsimport.Import(ctx, f.Pool, f.store, strings.NewReader("a\nb\nc\n"), o)
	if !errors.Is(err, context.Canceled) || report.New != 1 || report.Lines != 1 {
		t.Errorf("Import = %+v, %v, want one line and the context's error", report, err)
	}
	if !strings.Contains(fmt.Sprint(err), "lines from 2 to 2") {
		t.Errorf("the error does not name the lines: %v", err)
	}
	if n := f.claims(); n != 1 {
		t.Errorf("%d claims are made, want 1", n)
	}
}

func TestImportOfNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if report := f.mustLoad("", claimsimport.Options{}); report != (claimsimport.Report{}) {
		t.Errorf("an empty list: %+v", report)
	}
}

// What was imported is what a message with that id meets.
func TestImportedIDsAreRepeats(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustLoad("done\n", claimsimport.Options{})
	err := pgx.BeginTxFunc(t.Context(), f.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		outcomes, err := f.store.Claim(t.Context(), tx, dedup.Request{
			Identity: dedup.Identity{Queue: "orders", ID: "done", Fingerprint: uuid.New(), FingerprintVersion: 1},
		})
		if err == nil && outcomes[0].Kind != dedup.Duplicate {
			t.Errorf("a message with an imported id is %s, want duplicate: an import without fingerprint conflicts with nothing", outcomes[0].Kind)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
