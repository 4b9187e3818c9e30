package outbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestAWrongRelayConfigurationNamesItsField(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	tests := map[string]struct {
		pool   *pgxpool.Pool
		kafka  []kgo.Opt
		config RelayConfig
		says   string
	}{
		"no pool":             {nil, nil, RelayConfig{}, "pool"},
		"no slices":           {pool, nil, RelayConfig{Slices: -1}, "Slices"},
		"too many slices":     {pool, nil, RelayConfig{Slices: 65}, "between 1 and 64"},
		"short lease":         {pool, nil, RelayConfig{Lease: time.Millisecond}, "Lease is 1ms: it must be at least 1s"},
		"retries without end": {pool, nil, RelayConfig{RetryInitial: time.Millisecond}, "RetryInitial"},
		"negative poll":       {pool, nil, RelayConfig{IdlePoll: -1}, "IdlePoll"},
		"no idempotence":      {pool, []kgo.Opt{kgo.DisableIdempotentWrite()}, RelayConfig{}, "idempotent"},
		"transactions":        {pool, []kgo.Opt{kgo.TransactionalID("x")}, RelayConfig{}, "transactional id"},
		"cancelled records":   {pool, []kgo.Opt{kgo.AllowIdempotentProduceCancellation()}, RelayConfig{}, "cancelled"},
		"impossible option":   {pool, []kgo.Opt{kgo.ProducerBatchMaxBytes(-1)}, RelayConfig{}, "Kafka client"},
	}
	for name, test := range tests {
		if _, err := NewRelay(test.pool, test.kafka, test.config); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, which does not say %q", name, err, test.says)
		}
	}
	if _, err := NewRelay(pool, nil, RelayConfig{}); err != nil {
		t.Errorf("the zero configuration is refused: %v", err)
	}
}

func TestRetryDelaysDoubleUpToTheirLimit(t *testing.T) {
	t.Parallel()
	config := RelayConfig{RetryInitial: time.Second, RetryMax: 10 * time.Second}
	var got []time.Duration
	for _, attempts := range []int{0, 1, 2, 3, 4, 5, 1 << 40} {
		got = append(got, config.retryDelay(attempts)/time.Second)
	}
	if diff := cmp.Diff([]time.Duration{1, 1, 2, 4, 8, 10, 10}, got); diff != "" {
		t.Fatalf("seconds (-want +got):\n%s", diff)
	}
}

func TestPagesAreBoundedByRowsAndBytes(t *testing.T) {
	t.Parallel()
	var places []place
	for i, size := range []int32{10, 10, 10, 10, 95, 10, 300, 10} {
		places = append(places, place{seq: int64(i), bytes: size})
	}
	var got []int
	for _, page := range pages(places, 3, 100) {
		got = append(got, len(page))
	}
	// A row larger than a page is one by itself.
	if diff := cmp.Diff([]int{3, 1, 1, 1, 1, 1}, got); diff != "" {
		t.Fatalf("rows of each page (-want +got):\n%s", diff)
	}
	if list := pages(nil, 3, 100); len(list) != 0 {
		t.Fatalf("no places make %d pages", len(list))
	}
}

// The slices share the buckets out without a gap, and as SQL does it.
func TestSlicesCoverAllBucketsOnce(t *testing.T) {
	t.Parallel()
	for n := 1; n <= buckets; n++ {
		r := &Relay{config: RelayConfig{Slices: n}}
		next := 0
		for i := range n {
			s := newSliceRelay(r, i)
			if s.from() != next || s.to() <= s.from() {
				t.Fatalf("slice %d of %d has the buckets %d to %d, after %d", i, n, s.from(), s.to(), next)
			}
			for b := s.from(); b < s.to(); b++ {
				if b*n/buckets != i {
					t.Fatalf("bucket %d is slice %d's in Go and %d's in SQL, of %d", b, i, b*n/buckets, n)
				}
			}
			next = s.to()
		}
		if next != buckets {
			t.Fatalf("%d slices end at bucket %d", n, next)
		}
	}
}

// What sets a row aside is listed; all else says nothing about the row.
func TestOnlyADefiniteRefusalIsARowsFault(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		kerr.UnknownTopicOrPartition:                    scopeTopic,
		kerr.TopicAuthorizationFailed:                   scopeTopic,
		fmt.Errorf("wrapped: %w", kerr.MessageTooLarge): scopeRow,
		kerr.InvalidRecord:                              scopeRow,
		kerr.RequestTimedOut:                            "",
		kerr.NotEnoughReplicasAfterAppend:               "",
		kerr.OutOfOrderSequenceNumber:                   "",
		kerr.ClusterAuthorizationFailed:                 "",
		kerr.CorruptMessage:                             "",
		kgo.ErrClientClosed:                             "",
		errors.New("dial tcp: connection refused"):      "",
	} {
		if got := scopeOf(err); got != want {
			t.Errorf("%v: scope %q, want %q", err, got, want)
		}
	}
}

func TestReasonsAreBoundedTextWithAdvice(t *testing.T) {
	t.Parallel()
	got := reasonText(fmt.Errorf("%w \x00\xff%s", kerr.UnknownTopicOrPartition, strings.Repeat("ü", 1000)))
	if len(got) > 500 || strings.ContainsRune(got, 0) || !strings.HasPrefix(got, "UNKNOWN_TOPIC_OR_PARTITION") {
		t.Errorf("%d bytes: %.60q", len(got), got)
	}
	if got := reasonText(kerr.TopicAuthorizationFailed); !strings.Contains(got, "grant") {
		t.Errorf("no advice: %s", got)
	}
}

func TestRowsThatMovedAreNoticed(t *testing.T) {
	t.Parallel()
	listed := []place{{seq: 1}, {seq: 2}}
	for name, rows := range map[string][]outRow{"one is gone": {{seq: 1}}, "another is there": {{seq: 1}, {seq: 3}}} {
		var moved *movedError
		if err := verify(listed, rows); !errors.As(err, &moved) || !strings.Contains(err.Error(), "VACUUM FULL") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := verify(listed, []outRow{{seq: 1}, {seq: 2}}); err != nil {
		t.Errorf("rows in their place: %v", err)
	}
}

// The bound on a wave holds only if no record is larger than it is taken for.
func TestWireSizeIsNeverTooSmall(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	p, err := newPublisher(s.options())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for extra := range 3 {
		// As large as the wave may be: the client must take it as one batch.
		row := outRow{id: testClaim, topic: "t", key: []byte("k"), headerKeys: [][]byte{[]byte("h")}, headerValues: [][]byte{nil}}
		row.value = make([]byte, p.maxBatch-row.wireSize()-extra)
		errs, err := p.send(func(done <-chan struct{}) error { <-done; return nil }, []*outRow{&row})
		if err != nil || errs[0] != nil {
			t.Fatalf("a record of %d bytes, reckoned as %d of %d: %v, %v", len(row.value), row.wireSize(), p.maxBatch, err, errs)
		}
	}
}
