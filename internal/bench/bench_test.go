package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgtest"
)

func TestRecordsRepeatIDsWithTheirValues(t *testing.T) {
	t.Parallel()
	records, distinct := Records(5000, 4, 200, 0.2, 7)
	values := map[string]string{}
	for _, r := range records {
		id := string(r.Headers[0].Value)
		if first, seen := values[id]; seen && first != string(r.Value) {
			t.Fatalf("%s has two values: that is a conflict, not a repeat", id)
		}
		values[id] = string(r.Value)
		if n := len(r.Value); n < 150 || n > 250 {
			t.Fatalf("a value has %d bytes, want about 200", n)
		}
	}
	if len(values) != distinct {
		t.Errorf("%d ids, told %d", len(values), distinct)
	}
	if part := 1 - float64(distinct)/float64(len(records)); part < 0.15 || part > 0.25 {
		t.Errorf("%.2f of the records repeat, want 0.2", part)
	}
	again, _ := Records(5000, 4, 200, 0.2, 7)
	if !slices.EqualFunc(records, again, func(a, b *kgo.Record) bool { return string(a.Value) == string(b.Value) }) {
		t.Error("one seed makes two sets of records")
	}
}

func TestTheMeterTellsTheSecondHalfsRate(t *testing.T) {
	t.Parallel()
	m := newMeter(100)
	m.add(50)
	m.halfAt = m.started.Add(10 * time.Second)
	m.add(50)
	<-m.completed
	m.ended = m.halfAt.Add(time.Second)
	if f := m.figure("x", 0); f.PerSecond != 50 || f.Whole < 9 || f.Whole > 10 {
		t.Errorf("%.1f/s in the second half and %.1f/s in all, want 50 and 9.1", f.PerSecond, f.Whole)
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	values := []int{5, 1, 4, 2, 3}
	if m, high := quantile(values, 0.5), quantile(values, 0.99); m != 3 || high != 5 {
		t.Errorf("median %d and p99 %d of 1..5, want 3 and 5", m, high)
	}
}

// Every contestant makes exactly the rows that were sent, and gets a figure.
func TestRunMeasuresEveryContestant(t *testing.T) {
	t.Parallel()
	kafka := startKafka(t)
	db := pgtest.New(t)
	report, err := Run(t.Context(), db.Pool, kafka, db.Schema, Options{Records: 2000, Partitions: 3, Runs: 1, Single: 5})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 1+len(Kinds) {
		t.Fatalf("%d rows, want bare SQL and %d kinds: %+v", len(report.Rows), len(Kinds), report.Rows)
	}
	for _, row := range report.Rows {
		if row.PerSecond <= 0 || row.Ratio <= 0 || row.Lowest > row.Highest {
			t.Errorf("%+v is no measurement", row)
		}
	}
	if report.SingleMedian <= 0 || report.SingleP99 < report.SingleMedian {
		t.Errorf("single messages: median %s, p99 %s", report.SingleMedian, report.SingleP99)
	}
}

// A figure of a run that lost or doubled something must not be told.
func TestAnInexactRunHasNoFigure(t *testing.T) {
	t.Parallel()
	kafka := startKafka(t)
	db := pgtest.New(t)
	records, distinct := Records(200, 1, 200, 0.1, 3)
	if err := Preload(t.Context(), kafka, "t", 1, records); err != nil {
		t.Fatal(err)
	}
	_, err := Queue(t.Context(), db.Pool, kafka, Drain{
		Schema: db.Schema, Topic: "t", Queue: "q", Kind: SQL, Total: len(records), Distinct: distinct + 1, Lanes: 1, Batch: 100,
	})
	if err == nil {
		t.Fatal("a run that made one row less than told passes as exact")
	}
}

func startKafka(t *testing.T) []kgo.Opt {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
}
