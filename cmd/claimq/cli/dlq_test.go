package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/internal/pgtest"
)

// A letterFixture is a queue "q" with dead letters.
type letterFixture struct {
	*testEnv
	db      *pgtest.DB
	store   *dlq.Store
	delayed *delayq.Store
}

func newLetterFixture(t *testing.T, letters int) *letterFixture {
	t.Helper()
	f := &letterFixture{}
	f.testEnv, f.db = databaseEnv(t)
	addQueue(t, f.db, "q")
	dbExec(t, f.db, `insert into claimq.topics (topic_id, name) values (gen_random_uuid(), 'orders')`)
	var err error
	if f.store, err = dlq.New(dlq.Config{Schema: f.db.Schema}); err != nil {
		t.Fatal(err)
	}
	if f.delayed, err = delayq.New(delayq.Config{Schema: f.db.Schema}); err != nil {
		t.Fatal(err)
	}
	var list []*dlq.Letter
	for i := range letters {
		list = append(list, &dlq.Letter{
			Queue: 1, QueueName: "q", Reason: dlq.Permanent, ErrorMessage: fmt.Sprintf("no stock for order %d", i), Shown: fmt.Sprint("order-", i),
			Claim: uuid.NullUUID{UUID: uuid.New(), Valid: true}, Source: &dlq.Source{Topic: 1, Offset: int64(i)}, Starts: 1, Attempts: 1,
			Record: &kgo.Record{
				Topic: "orders", Key: []byte("k"), Value: fmt.Appendf(nil, `{"secret": %d}`, i), Timestamp: time.UnixMilli(1),
				Headers: []kgo.RecordHeader{{Key: "type", Value: []byte("placed")}},
			},
		})
	}
	f.commit(func(b *pgx.Batch) { f.store.Put(b, list) })
	return f
}

func (f *letterFixture) commit(queue func(*pgx.Batch)) {
	f.t.Helper()
	err := pgx.BeginTxFunc(context.WithoutCancel(f.t.Context()), f.db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var b pgx.Batch
		queue(&b)
		return tx.SendBatch(context.WithoutCancel(f.t.Context()), &b).Close()
	})
	if err != nil {
		f.t.Error(err)
	}
}

// worker resolves what comes into the delay queue until the test or stop ends it.
func (f *letterFixture) worker() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			runs, err := f.delayed.Lease(ctx, f.db.Pool, 1, delayq.LeaseOptions{})
			if err != nil || len(runs) == 0 {
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			f.commit(func(b *pgx.Batch) {
				var ids []uuid.UUID
				var finished []delayq.Finished
				for _, run := range runs {
					ids = append(ids, run.Items[0].ID)
					finished = append(finished, delayq.Finished{Run: run, Verdicts: make([]delayq.Verdict, len(run.Items))})
					finished[len(finished)-1].Verdicts[0].Outcome = delayq.Done
				}
				f.store.Resolve(b, ids)
				if err := f.delayed.Finish(b, 1, finished); err != nil {
					f.t.Error(err)
				}
			})
		}
	}()
	stop = func() { cancel(); <-done }
	f.t.Cleanup(stop)
	return stop
}

type lettersOut struct {
	Letters []letterView `json:"letters"`
}

func TestDLQCommandsFromCausesToErased(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t, 3)
	causes := decodeJSON[struct {
		Causes []causeView `json:"causes"`
	}](t, f.mustRun("dlq", "causes", "--json")).Causes
	if len(causes) != 1 || causes[0].Letters != 3 || causes[0].Dead != 3 {
		t.Fatalf("causes: %+v", causes)
	}
	f.mustRun("dlq", "note", causes[0].Cause.String(), "the stock service was down")
	if out := f.mustRun("dead", "causes"); !strings.Contains(out, "ada: the stock service was down") {
		t.Errorf("the note is not shown:\n%s", out)
	}
	out := f.mustRun("broken", "list", "--queue", "q", "--json")
	if strings.Contains(out, "secret") || strings.Contains(out, "placed") {
		t.Errorf("a payload is shown unasked:\n%s", out)
	}
	letters := decodeJSON[lettersOut](t, out).Letters
	if len(letters) != 3 || letters[0].ID != "order-0" || *letters[0].Source != (claimPlace{Topic: "orders"}) {
		t.Fatalf("letters: %+v", letters)
	}
	id := letters[1].Letter.String()
	shown := decodeJSON[letterView](t, f.mustRun("dlq", "show", id, "--payload", "json", "--json"))
	var value struct{ Secret int }
	if err := json.Unmarshal(shown.Record.JSON, &value); err != nil || value.Secret != 1 || *shown.Record.Key != "k" {
		t.Errorf("the payload is %+v (%v)", shown.Record, err)
	}
	if out := f.mustRun("dlq", "show", id); strings.Contains(out, "secret") || !strings.Contains(out, "not shown") {
		t.Errorf("show without --payload:\n%s", out)
	}
	if out := f.mustRun("dlq", "list", "--id", "order-2", "--payload", "hex"); !strings.Contains(out, "7b22736563726574") {
		t.Errorf("hex:\n%s", out)
	}

	f.refuse(ExitUsage, "dlq", "discard", "--why", "x")              // everything, unasked
	f.refuse(ExitUsage, "dlq", "discard", id)                        // no reason
	f.refuse(ExitUsage, "dlq", "list", "--from", "2026-01-01T00:00") // no zone
	f.refuse(ExitUsage, "dlq", "show", id, "--payload", "xml")       //
	f.refuse(ExitNothing, "dlq", "show", uuid.NewString())           //
	f.refuse(ExitNothing, "dlq", "list", "--queue", "p")             //
	f.refuse(ExitNothing, "dlq", "list", "--text", "nowhere")        //
	f.refuse(ExitNothing, "dlq", "restore", id, "--why", "not yet")  //
	if out := f.mustRun("dlq", "discard", id, "--dry-run"); !strings.Contains(out, "1 letter would be discarded") {
		t.Errorf("dry run: %s", out)
	}
	f.mustRun("dlq", "discard", id, "--why", "a test order")
	if n := len(decodeJSON[lettersOut](t, f.mustRun("dlq", "list", "--json")).Letters); n != 2 {
		t.Errorf("%d letters are listed after one was discarded, want 2", n)
	}
	f.mustRun("dlq", "restore", id, "--why", "it was none")
	erased := decodeJSON[decidedView](t, f.mustRun("dlq", "erase", "--all", "--why", "forget", "--json"))
	if diff := cmp.Diff(decidedView{Decision: "erase", Letters: 3, Who: "ada", Why: "forget"}, erased); diff != "" {
		t.Errorf("erase (-want +got):\n%s", diff)
	}
	gone := decodeJSON[letterView](t, f.mustRun("dlq", "show", id, "--payload", "text", "--json"))
	if gone.Record != nil || gone.State != "erased" {
		t.Errorf("an erased letter shows %+v", gone)
	}
}

func TestDLQExportAndImportThroughAFile(t *testing.T) {
	t.Parallel()
	f, other := newLetterFixture(t, 5), newLetterFixture(t, 0)
	lines := f.mustRun("dlq", "export", "--all")
	file := filepath.Join(t.TempDir(), "letters.jsonl")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := other.mustRun("dlq", "import", file, "--why", "moved", "--json"); !strings.Contains(out, `"stored": 5`) {
		t.Errorf("import: %s", out)
	}
	if diff := cmp.Diff(lines, other.mustRun("dlq", "export", "--queue", "q")); diff != "" {
		t.Errorf("exported again (-want +got):\n%s", diff)
	}
	other.Stdin = strings.NewReader(strings.ReplaceAll(lines, `"q"`, `"elsewhere"`))
	if said := other.refuse(ExitFailed, "dlq", "import", "-", "--why", "moved"); !strings.Contains(said, `line 1: there is no queue "elsewhere"`) {
		t.Errorf("it says: %s", said)
	}
}

func TestReplayFromDryRunToItsEnd(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t, 30)
	f.refuse(ExitUsage, "replay", "start", "--why", "x") // everything, unasked
	f.refuse(ExitUsage, "replay", "start", "--all")      // no reason
	f.refuse(ExitUsage, "replay", "start", "--all", "--why", "x", "--ramp", "1s")
	f.refuse(ExitNothing, "replay", "start", "--text", "nowhere", "--why", "x")
	f.refuse(ExitNothing, "replay", "list")
	f.refuse(ExitNothing, "replay", "show", uuid.NewString())

	dry := decodeJSON[startedView](t, f.mustRun("replay", "start", "--queue", "q", "--dry-run", "--json"))
	if dry.Plan.Listed != 30 || !dry.Plan.Dry || dry.Replay != nil || len(dry.Plan.Causes) != 1 || dry.Plan.Causes[0].Topic != "orders" {
		t.Errorf("the dry run tells %+v", dry)
	}
	f.refuse(ExitNothing, "replay", "list")

	f.worker()
	ended := decodeJSON[startedView](t, f.mustRun("redrive", "start", "--queue", "q", "--limit", "20", "--why", "fixed", "--json"))
	if ended.Replay.State != "finished" || ended.Replay.Resolved != 20 || ended.Plan.OverLimit != 10 {
		t.Errorf("it ended %+v", ended.Replay)
	}
	if out := f.mustRun("requeue", "list"); !strings.Contains(out, "finished") || !strings.Contains(out, "fixed") {
		t.Errorf("the list:\n%s", out)
	}
}

// C21, C35: twice is refused with the replay's id; a signal ends the command at once
// and nothing is lost; cancel gives everything back.
func TestReplayInterruptedRefusedResumedAndCancelled(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t, 50)
	signals := make(chan os.Signal, 1)
	f.Signals = signals
	signals <- syscall.SIGTERM
	begun := time.Now()
	said := f.refuse(ExitPartial, "replay", "start", "--all", "--rate", "0.01", "--why", "slow")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %s to stop", took)
	}
	open := decodeJSON[struct {
		Replays []replayView `json:"replays"`
	}](t, f.mustRun("replay", "list", "--open", "--json")).Replays
	if len(open) != 1 || open[0].Listed+open[0].Queued != 50 || !strings.Contains(said, open[0].Replay.String()) {
		t.Fatalf("after the signal: %+v\n%s", open, said)
	}
	id := open[0].Replay.String()
	if said := f.refuse(ExitFailed, "replay", "start", "--all", "--why", "again"); !strings.Contains(said, "already_replaying") || !strings.Contains(said, id) {
		t.Errorf("twice: %s", said)
	}
	f.mustRun("replay", "pause", id, "--why", "wait")
	f.refuse(ExitFailed, "replay", "pause", id, "--why", "wait")
	signals <- syscall.SIGTERM
	f.refuse(ExitPartial, "replay", "resume", id, "--why", "on")
	f.mustRun("replay", "cancel", id, "--why", "enough")
	shown := decodeJSON[replayView](t, f.mustRun("replay", "show", id, "--json"))
	if shown.State != "cancelled" || shown.Cancelled != 50 {
		t.Errorf("cancelled: %+v", shown)
	}
	f.worker()
	f.Signals = nil
	out := f.mustRun("replay", "start", "--all", "--why", "now")
	if !strings.Contains(out, "finished") {
		t.Errorf("after the cancel:\n%s", out)
	}
}
