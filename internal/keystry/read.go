package keystry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/nearest"
)

// Options say what is tried. All but Patience are required.
type Options struct {
	// Topics are read, in this order.
	Topics []string
	// Last is how many of the newest offsets of each topic are looked at, spread evenly
	// over its partitions. Offsets without a record (compacted away, or of aborted
	// transactions) make it fewer records.
	Last int
	// Rules is the rule; it must be valid. Queue is the name that ids are unique in.
	Rules dedup.Rules
	Queue string
	// Patience is how long Kafka may take to answer where a topic begins and ends, and
	// how long it may send nothing before the rest of a partition is given up as
	// unreadable. Default 10 s.
	Patience time.Duration
}

// A MissingTopicError says that Kafka has no such topic, or does not show it.
type MissingTopicError struct {
	Topic string
	// Known are the topics that it shows.
	Known []string
}

func (e *MissingTopicError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("Kafka has no topic %q, nor shows any other to this user", e.Topic)
	}
	return fmt.Sprintf("Kafka has no topic %q, or this user may not see it; did you mean %q?", e.Topic, nearest.Of(e.Topic, e.Known))
}

// Try reads the end of topics and tells what the rule would do. Records are looked
// at in order within a partition, and in no order across partitions, so which copy
// of an id is the first can differ from one run to the next.
func Try(ctx context.Context, client []kgo.Opt, o Options) (Report, error) {
	if o.Last <= 0 {
		return Report{}, fmt.Errorf("the number of records to look at is %d: it must be greater than zero", o.Last)
	}
	if err := o.Rules.Validate(); err != nil {
		return Report{}, err
	}
	if o.Patience <= 0 {
		o.Patience = 10 * time.Second
	}
	t := newTrial(o.Queue, o.Rules)
	for _, topic := range o.Topics {
		id, ranges, err := o.findRanges(ctx, client, topic)
		if err != nil {
			return Report{}, err
		}
		r := reader{topic: topic, id: id, ranges: ranges, left: len(ranges), patience: o.Patience, trial: t}
		if err := r.read(ctx, client); err != nil {
			return Report{}, err
		}
		t.report.Ranges = append(t.report.Ranges, r.ranges...)
	}
	return t.finish(), nil
}

// findRanges asks where the end of a topic is, as a reader of committed records
// sees it. Partitions without records are left out.
func (o *Options) findRanges(ctx context.Context, options []kgo.Opt, topic string) (id [16]byte, ranges []Range, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	client, err := kgo.NewClient(options...)
	if err != nil {
		return id, nil, fmt.Errorf("make a Kafka client: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	details, err := admin.ListTopics(ctx)
	if err != nil {
		return id, nil, fmt.Errorf("ask Kafka for its topics: %w", err)
	}
	detail, ok := details[topic]
	if !ok || detail.Err != nil {
		return id, nil, &MissingTopicError{Topic: topic, Known: details.Names()}
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return id, nil, fmt.Errorf("ask Kafka where %s begins: %w", topic, err)
	}
	ends, err := admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return id, nil, fmt.Errorf("ask Kafka where %s ends: %w", topic, err)
	}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(topic, end.Partition)
		if start.Offset < end.Offset {
			ranges = append(ranges, Range{Topic: topic, Partition: end.Partition, From: start.Offset, To: end.Offset})
		}
	})
	slices.SortFunc(ranges, func(a, b Range) int { return int(a.Partition - b.Partition) })
	shorten(ranges, int64(o.Last))
	return detail.ID, ranges, nil
}

// shorten moves the ranges' beginnings so that they hold at most last offsets
// together, the same number each where they have them. Each range keeps one at
// least.
func shorten(ranges []Range, last int64) {
	bySize := make([]*Range, len(ranges))
	for i := range ranges {
		bySize[i] = &ranges[i]
	}
	slices.SortFunc(bySize, func(a, b *Range) int {
		sizeA, sizeB := a.To-a.From, b.To-b.From
		switch {
		case sizeA < sizeB:
			return -1
		case sizeA > sizeB:
			return 1
		}
		return int(a.Partition - b.Partition)
	})
	for i, r := range bySize {
		share := max(last/int64(len(bySize)-i), 1)
		size := min(r.To-r.From, share)
		r.From = r.To - size
		last -= size
	}
}

// A reader reads the ranges of one topic.
type reader struct {
	topic    string
	id       [16]byte
	ranges   []Range
	left     int // ranges that are not read to their end
	patience time.Duration
	trial    *trial
	done     map[int32]bool
}

func (r *reader) read(ctx context.Context, options []kgo.Opt) error {
	if r.left == 0 {
		return nil
	}
	r.done = make(map[int32]bool, r.left)
	from := make(map[int32]kgo.Offset, len(r.ranges))
	for _, part := range r.ranges {
		from[part.Partition] = kgo.NewOffset().At(part.From)
	}
	client, err := kgo.NewClient(append(slices.Clone(options),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: from}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// The marks of transactions show how far a partition is read where records of
		// aborted ones are left out.
		kgo.KeepControlRecords(),
	)...)
	if err != nil {
		return fmt.Errorf("make a Kafka client: %w", err)
	}
	defer client.Close()
	for r.left > 0 {
		sent, err := r.poll(ctx, client)
		if err != nil {
			return err
		}
		if !sent {
			r.giveUp()
			return nil
		}
	}
	return nil
}

// poll looks at what comes next, and reports whether anything came of a partition
// that is not read to its end.
func (r *reader) poll(ctx context.Context, client *kgo.Client) (sent bool, err error) {
	quiet, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	fetches := client.PollFetches(quiet)
	if ctx.Err() != nil {
		return false, fmt.Errorf("read topic %s: %w", r.topic, ctx.Err())
	}
	var failed []string
	fetches.EachError(func(_ string, partition int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) && !kerr.IsRetriable(err) {
			failed = append(failed, fmt.Sprintf("partition %d: %v", partition, err))
		}
	})
	if len(failed) > 0 {
		return false, fmt.Errorf("read topic %s: %s", r.topic, strings.Join(failed, "; "))
	}
	ended := map[string][]int32{}
	fetches.EachRecord(func(record *kgo.Record) {
		if r.done[record.Partition] {
			return // a busy topic goes on
		}
		sent = true
		r.see(record)
		if r.done[record.Partition] {
			ended[r.topic] = append(ended[r.topic], record.Partition)
		}
	})
	client.PauseFetchPartitions(ended)
	return sent, nil
}

func (r *reader) see(record *kgo.Record) {
	at := slices.IndexFunc(r.ranges, func(part Range) bool { return part.Partition == record.Partition })
	if at < 0 {
		return
	}
	part := &r.ranges[at]
	if record.Offset < part.To && !record.Attrs.IsControl() {
		part.Records++
		r.trial.add(record, r.id)
	}
	if record.Offset >= part.To-1 {
		r.done[part.Partition] = true
		r.left--
	}
}

// giveUp notes what was not read.
func (r *reader) giveUp() {
	for _, part := range r.ranges {
		if !r.done[part.Partition] {
			r.trial.report.Unread = append(r.trial.report.Unread, Place{Topic: r.topic, Partition: part.Partition, Offset: part.To})
		}
	}
}
