package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Options say what is measured. Fields that are zero get the defaults in brackets.
type Options struct {
	Records    int     // [100,000]
	Partitions int     // [8]
	Size       int     // bytes of a value [200]
	Repeats    float64 // part of the records that repeat an id [0.1]
	Kinds      []Kind  // handler kinds [all]
	Lanes      int     // claimq's lanes, and the limit's connections [2]
	Batch      int     // messages of a transaction at most [500]
	Runs       int     // of each contestant, in turn [3]
	Single     int     // messages whose way is timed one by one [200]
	Seed       uint64
	// Progress, when set, is told what is going on.
	Progress func(format string, args ...any)
}

// WithDefaults fills zero fields in.
func (o Options) WithDefaults() Options {
	o.Records = cmp.Or(o.Records, 100_000)
	o.Partitions = cmp.Or(o.Partitions, 8)
	o.Size = cmp.Or(o.Size, 200)
	o.Lanes = cmp.Or(o.Lanes, 2)
	o.Batch = cmp.Or(o.Batch, 500)
	o.Runs = cmp.Or(o.Runs, 3)
	o.Single = cmp.Or(o.Single, 200)
	o.Seed = cmp.Or(o.Seed, 1)
	if o.Kinds == nil {
		o.Kinds = Kinds
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	return o
}

// A Row is a contestant with the median of its runs.
type Row struct {
	Name string `json:"name"`
	// PerSecond is the median rate over the second half of a run; Lowest and Highest
	// its spread.
	PerSecond float64 `json:"per_second"`
	Lowest    float64 `json:"lowest"`
	Highest   float64 `json:"highest"`
	// Ratio is the median of the ratios to the limit, run by run.
	Ratio float64 `json:"ratio_to_limit"`
}

// A Report is what was measured.
type Report struct {
	Records  int     `json:"records"`
	Distinct int     `json:"distinct"`
	Repeats  float64 `json:"repeats"`
	Rows     []Row   `json:"rows"`
	// SingleMedian and SingleP99 are a message's way from produce to commit when the
	// queue is idle.
	SingleMedian time.Duration `json:"single_median_ns"`
	SingleP99    time.Duration `json:"single_p99_ns"`
}

// Run measures in a migrated schema of its own. Contestants run in turn, limit
// first, so that a machine whose speed drifts drifts for all of them, and each
// ratio is taken between neighbours. Every run is checked to be exact.
func Run(ctx context.Context, pool *pgxpool.Pool, kafka []kgo.Opt, schema string, o Options) (Report, error) {
	o = o.WithDefaults()
	records, distinct := Records(o.Records, o.Partitions, o.Size, o.Repeats, o.Seed)
	topic := "claimq-bench-" + uuid.NewString()[:8]
	o.Progress("writing %d records to topic %s", len(records), topic)
	if err := Preload(ctx, kafka, topic, o.Partitions, records); err != nil {
		return Report{}, err
	}
	defer deleteTopic(ctx, kafka, topic)
	rates, ratios := map[string][]float64{}, map[string][]float64{}
	for run := range o.Runs {
		o.Progress("run %d of %d: bare SQL", run+1, o.Runs)
		limit, err := Limit(ctx, pool, schema, records, o.Lanes, o.Batch)
		if err != nil {
			return Report{}, err
		}
		rates[limit.Name] = append(rates[limit.Name], limit.PerSecond)
		ratios[limit.Name] = append(ratios[limit.Name], 1)
		for _, kind := range o.Kinds {
			o.Progress("run %d of %d: claimq, %s handler", run+1, o.Runs, kind)
			// Another queue's name each time: to a new queue every id is new.
			name := fmt.Sprintf("bench-%s-%d", kind, run)
			figure, err := Queue(ctx, pool, kafka, Drain{
				Schema: schema, Topic: topic, Queue: name, Kind: kind,
				Total: len(records), Distinct: distinct, Lanes: o.Lanes, Batch: o.Batch,
			})
			if err != nil {
				return Report{}, err
			}
			rates[figure.Name] = append(rates[figure.Name], figure.PerSecond)
			ratios[figure.Name] = append(ratios[figure.Name], figure.PerSecond/limit.PerSecond)
		}
	}
	report := Report{Records: len(records), Distinct: distinct, Repeats: o.Repeats}
	names := []string{limitName}
	for _, kind := range o.Kinds {
		names = append(names, figureName(kind))
	}
	for _, name := range names {
		report.Rows = append(report.Rows, Row{
			Name: name, PerSecond: quantile(rates[name], 0.5), Ratio: quantile(ratios[name], 0.5),
			Lowest: slices.Min(rates[name]), Highest: slices.Max(rates[name]),
		})
	}
	o.Progress("%d single messages", o.Single)
	ways, err := Single(ctx, pool, kafka, schema, o.Single)
	if err != nil {
		return Report{}, err
	}
	report.SingleMedian, report.SingleP99 = quantile(ways, 0.5), quantile(ways, 0.99)
	return report, nil
}

func deleteTopic(ctx context.Context, kafka []kgo.Opt, topic string) {
	client, err := kgo.NewClient(kafka...)
	if err != nil {
		return // the options made clients before
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	// A topic that stays behind costs disk and nothing else.
	_, _ = kadm.NewClient(client).DeleteTopic(ctx, topic)
}

func quantile[T cmp.Ordered](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
