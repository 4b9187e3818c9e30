package consumer

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What is asked for follows what the topics hold, and forgets what they held.
func TestAFetchIsSizedByWhatItTakesInMemory(t *testing.T) {
	t.Parallel()
	f := newFetchSizer(64 << 20)
	client, err := kgo.NewClient(kgo.WithHooks(f), kgo.SeedBrokers("127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	asked := func() int {
		return int(client.OptValue(kgo.FetchMaxBytes).(int32))
	}
	see := func(batches int, m kgo.FetchBatchMetrics) {
		for range batches {
			f.OnFetchBatchRead(kgo.BrokerMetadata{}, "orders", 0, m)
		}
	}
	see(1, kgo.FetchBatchMetrics{NumRecords: 1, CompressedBytes: 1 << 20, UncompressedBytes: 1 << 20})
	if got := asked(); got < 7<<20 || got > 8<<20 {
		t.Errorf("%d bytes are asked for of large records, want about 8 MiB", got)
	}
	see(200, kgo.FetchBatchMetrics{NumRecords: 10, CompressedBytes: 100 << 10, UncompressedBytes: 1 << 20})
	if got := asked(); got < 700<<10 || got > 1<<20 {
		t.Errorf("%d bytes are asked for of what grows tenfold, want about a tenth of 8 MiB", got)
	}
	see(500, kgo.FetchBatchMetrics{NumRecords: 1000, CompressedBytes: 1 << 10, UncompressedBytes: 1 << 20})
	if got := asked(); got > 2*leastFetch {
		t.Errorf("%d bytes are asked for of what grows a thousandfold, want about the least", got)
	}
	see(500, kgo.FetchBatchMetrics{NumRecords: 1, CompressedBytes: 1 << 20, UncompressedBytes: 1 << 20})
	if got := asked(); got < 6<<20 {
		t.Errorf("%d bytes are asked for after large records have come back", got)
	}
}

func TestOwnBytesCopiesARecordExactly(t *testing.T) {
	t.Parallel()
	response := []byte("keyvalueheader")
	for name, r := range map[string]*kgo.Record{
		"all":   {Key: response[:3], Value: response[3:8], Headers: []kgo.RecordHeader{{Key: "h", Value: response[8:]}, {Key: "h"}, {Key: "h", Value: []byte{}}}, Offset: 7},
		"null":  {},
		"empty": {Key: response[:0], Value: response[:0], Headers: []kgo.RecordHeader{}},
	} {
		t.Run(name, func(t *testing.T) {
			own := ownBytes(r)
			exactly := cmp.Comparer(func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) })
			if diff := cmp.Diff(r.Headers, own.Headers, exactly); diff != "" || own.Offset != r.Offset {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([][]byte{r.Key, r.Value}, [][]byte{own.Key, own.Value}, exactly); diff != "" {
				t.Errorf("key and value (-want +got):\n%s", diff)
			}
			if len(own.Key) > 0 {
				own.Key = append(own.Key, '!')
				if string(own.Value) != "value" {
					t.Errorf("the value is %q after something was added to the key", own.Value)
				}
				copy(response, "XXXXXXXXXXXXXX")
				if string(own.Value) != "value" || string(own.Headers[0].Value) != "header" {
					t.Error("the copy shares memory with the response")
				}
			}
		})
	}
}
