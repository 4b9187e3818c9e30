package consumer

import (
	"math"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// leastFetch is asked for at least, and before anything is known of what the topics
	// hold. A broker answers with one batch in any case.
	leastFetch = 64 << 10
	// mostPerPartition is asked of one partition at most.
	mostPerPartition = 1 << 20
	// sizerMemory is after how many bytes in memory what was seen counts half.
	sizerMemory = 64 << 20
)

// A fetchSizer keeps the memory that one fetch takes near a target. Kafka counts
// what it sends and not what becomes of it: a megabyte on the wire can be three
// hundred in memory (compressed JSON), or ten (small records, each with its
// overhead). It is a hook of the client, and safe for concurrent use.
type fetchSizer struct {
	target int // bytes in memory, for a fetch from one broker

	mu      sync.Mutex
	client  *kgo.Client
	wire    float64 // bytes fetched
	memory  float64 // what they took
	applied int32   // what the client asks for now
}

func newFetchSizer(maxBuffered int) *fetchSizer {
	return &fetchSizer{target: min(maxBuffered/4, 8<<20), applied: leastFetch}
}

// OnNewClient implements kgo.HookNewClient.
func (f *fetchSizer) OnNewClient(client *kgo.Client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.client = client
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead. The client may have asked for
// more before the records of this batch are polled, so it is told at once.
func (f *fetchSizer) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wire += float64(m.CompressedBytes)
	f.memory += float64(m.UncompressedBytes + m.NumRecords*recordOverhead)
	if f.memory > sizerMemory {
		f.wire, f.memory = f.wire/2, f.memory/2
	}
	fetch := f.size()
	if math.Abs(float64(fetch-f.applied)) > 0.2*float64(f.applied) {
		f.applied = fetch
		f.client.UpdateFetchMaxBytes(fetch, min(fetch, mostPerPartition))
	}
}

// size is what is to be asked of a broker at a time.
func (f *fetchSizer) size() int32 {
	if f.wire == 0 || f.memory == 0 {
		return leastFetch
	}
	wanted := float64(f.target) * f.wire / f.memory
	return int32(max(min(wanted, float64(f.target)), leastFetch))
}

// ownBytes returns a copy of a record that shares no memory with the response it
// came in: one record that waits would keep all of that alive, 16 MB for some
// bytes. Null stays null and empty stays empty.
func ownBytes(r *kgo.Record) *kgo.Record {
	size := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += len(h.Value)
	}
	block := make([]byte, 0, size)
	take := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		start := len(block)
		block = append(block, b...)
		return block[start:len(block):len(block)]
	}
	record := *r
	record.Key, record.Value = take(r.Key), take(r.Value)
	if r.Headers != nil {
		record.Headers = make([]kgo.RecordHeader, len(r.Headers))
		for i, h := range r.Headers {
			record.Headers[i] = kgo.RecordHeader{Key: h.Key, Value: take(h.Value)}
		}
	}
	return &record
}
