// Package kafkaclient makes franz-go clients of options that several of them share.
package kafkaclient

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

var making sync.Mutex

// New is kgo.NewClient, one at a time. An option holds what it was made with, and
// franz-go sorts the codecs of ProducerBatchCompression in place when a client is made:
// two clients that are made of one list of options at the same moment race for it.
func New(options ...kgo.Opt) (*kgo.Client, error) {
	making.Lock()
	defer making.Unlock()
	return kgo.NewClient(options...)
}
