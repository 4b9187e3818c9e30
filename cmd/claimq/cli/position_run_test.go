package cli

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/pgtest"
)

// A runningQueue is a worker of the queue "q" on topic "a", and an Env for the
// commands of an operator beside it.
type runningQueue struct {
	*process
	operator *testEnv
	db       *pgtest.DB
	brokers  []string
	file     string
	table    string
}

func startQueue(t *testing.T) *runningQueue {
	t.Helper()
	db := pgtest.New(t)
	q := &runningQueue{db: db, table: sink(t, db), brokers: startKafka(t, "a").ListenAddrs()}
	q.file = runFile(t, db.DSN, db.Schema, q.brokers, queueYAML("q", q.table, "a"))
	q.operator = newTestEnv(t, "CLAIMQ_OPERATOR=ada")
	q.operator.Now = time.Now
	produce(t, q.brokers, "a", "1", "2", "3", "4", "5")
	q.process = start(t, newTestEnv(t), "-c", q.file)
	q.waitReady()
	q.waitRows(5)
	q.waitLag(0)
	return q
}

func (q *runningQueue) rows() int {
	q.t.Helper()
	return count(q.t, q.db, "select count(*) from "+q.table)
}

func (q *runningQueue) waitRows(n int) {
	q.t.Helper()
	eventually(q.t, strconv.Itoa(n)+" rows", func() bool { return q.rows() == n })
}

// waitLag waits until the positions are that far from the topic's end.
func (q *runningQueue) waitLag(n int64) {
	q.t.Helper()
	eventually(q.t, "a lag of "+strconv.FormatInt(n, 10), func() bool {
		view := decodeJSON[positionsView](q.t, q.operator.mustRun("position", "show", "-c", q.file, "--json"))
		var lag int64
		for _, p := range view.Positions {
			if p.Lag == nil {
				return false
			}
			lag += *p.Lag
		}
		return len(view.Positions) == 2 && lag == n
	})
}

var duplicates = regexp.MustCompile(`claimq_messages_total\{outcome="duplicate",queue="q"\} (\d+)`)

func (q *runningQueue) waitDuplicates(n int) {
	q.t.Helper()
	eventually(q.t, strconv.Itoa(n)+" duplicates", func() bool {
		_, metrics := q.get("/metrics")
		match := duplicates.FindStringSubmatch(metrics)
		return match != nil && match[1] == strconv.Itoa(n)
	})
}

func TestPositionSetMakesARunningWorkerReadAgainAndDropWhatIsDone(t *testing.T) {
	t.Parallel()
	q := startQueue(t)
	wantAll(t, q.operator.mustRun("position", "set", "-c", q.file, "--queue", "q", "--all", "--to", "earliest", "--why", "a trial"),
		"5 offsets are read again", "dropped as duplicates")
	produce(t, q.brokers, "a", "1", "2", "3", "4", "5") // on every partition that has records
	q.waitDuplicates(10)
	q.waitLag(0)
	if n := q.rows(); n != 5 {
		t.Errorf("%d rows, want the same 5", n)
	}
	produce(t, q.brokers, "a", "3", "6")
	q.waitRows(6)
}

// The worker is idle: no message comes whose batch would find the fence.
func TestPositionSetMakesAnIdleWorkerReadAgain(t *testing.T) {
	t.Parallel()
	q := startQueue(t)
	q.operator.mustRun("position", "set", "-c", q.file, "--queue", "q", "--all", "--to", "earliest", "--why", "a trial")
	q.waitDuplicates(5)
	q.waitLag(0)
	if n := q.rows(); n != 5 {
		t.Errorf("%d rows, want the same 5", n)
	}
}

func TestAForgottenIDIsHandledAgainWhenItIsReadAgain(t *testing.T) {
	t.Parallel()
	q := startQueue(t)
	if code := q.stop(); code != ExitOK {
		t.Fatalf("claimq run ended with %d", code)
	}
	wantAll(t, q.operator.mustRun("claims", "forget", "-c", q.file, "--queue", "q", "3", "--why", "a trial"), "handled as new")
	q.operator.mustRun("position", "set", "-c", q.file, "--queue", "q", "--all", "--to", "earliest", "--why", "a trial")
	q.process = start(t, newTestEnv(t), "-c", q.file)
	q.waitRows(6)
	q.waitDuplicates(4)
	if n := count(t, q.db, "select count(*) from "+q.table+" where id = '3'"); n != 2 {
		t.Errorf("the forgotten id was handled %d times, want twice", n)
	}
}

// Kafka's offset moved by hand moves nothing, and is told.
func TestKafkasOffsetMovedByHandIsIgnoredAndTold(t *testing.T) {
	t.Parallel()
	q := startQueue(t)
	if code := q.stop(); code != ExitOK {
		t.Fatalf("claimq run ended with %d", code)
	}
	admin := kadm.NewClient(kafkatest.Client(t, q.brokers))
	moved := kadm.Offsets{}
	for partition := range int32(2) {
		moved.AddOffset("a", partition, 0, -1)
	}
	if err := admin.CommitAllOffsets(t.Context(), "q", moved); err != nil {
		t.Fatal(err)
	}
	wantAll(t, q.operator.mustRun("position", "show", "-c", q.file), "behind the position", "is ignored", "claimq position set")
	produce(t, q.brokers, "a", "6")
	q.process = start(t, newTestEnv(t), "-c", q.file)
	q.waitRows(6)
	q.waitLag(0)
	_, metrics := q.get("/metrics")
	if match := duplicates.FindStringSubmatch(metrics); match != nil && match[1] != "0" {
		t.Errorf("%s duplicates: records were read again from Kafka's offset", match[1])
	}
}

// The figures of status are the running worker's own.
func TestStatusOfARunningQueue(t *testing.T) {
	t.Parallel()
	q := startQueue(t)
	eventually(t, "status tells the worker's figures", func() bool {
		report := decodeJSON[statusReport](t, q.operator.mustRun("status", "-c", q.file, "--json"))
		s := report.Queues[0]
		return s.State == "running" && s.Workers == 1 && s.ProcessedHour != nil && *s.ProcessedHour == 5 && s.Lag != nil && *s.Lag == 0 && s.Partitions == 2
	})
	if code := q.stop(); code != ExitOK {
		t.Fatalf("claimq run ended with %d", code)
	}
	report := decodeJSON[statusReport](t, q.operator.mustRun("status", "-c", q.file, "--json"))
	if s := report.Queues[0]; s.State != "stopped" || s.Workers != 0 || s.Lag == nil || *s.Lag != 0 {
		t.Errorf("after the worker has stopped: %+v", s)
	}
}
