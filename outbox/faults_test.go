package outbox

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const produceKey = 0

// answerProduce answers each partition of a produce request with what errorFor
// says; 0 means success, without appending anything.
func answerProduce(request kmsg.Request, errorFor func(topic string, partition int32) int16) kmsg.Response {
	req := request.(*kmsg.ProduceRequest)
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range req.Topics {
		t := kmsg.NewProduceResponseTopic()
		t.Topic, t.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition = partition.Partition
			p.ErrorCode = errorFor(topic.Topic, partition.Partition)
			t.Partitions = append(t.Partitions, p)
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

// a heldProduce keeps produce requests without an answer.
type heldProduce struct {
	asked   chan struct{}
	open    chan struct{}
	release func()
}

// holdProduce makes the cluster answer no produce request until it is released:
// every request is then told to try again, and later ones pass.
func (s *stage) holdProduce() *heldProduce {
	h := &heldProduce{asked: make(chan struct{}), open: make(chan struct{})}
	var asked, released sync.Once
	h.release = func() { released.Do(func() { close(h.open) }) }
	s.t.Cleanup(h.release)
	s.kafka.ControlKey(produceKey, func(request kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-h.open:
			return nil, nil, false
		default:
		}
		s.kafka.KeepControl()
		asked.Do(func() { close(h.asked) })
		s.kafka.SleepControl(func() { <-h.open })
		return answerProduce(request, func(string, int32) int16 { return kerr.NotLeaderForPartition.Code }), nil, true
	})
	return h
}

// timeoutAfterAppend makes the cluster append what the next n produce requests
// hold, and answer each with REQUEST_TIMED_OUT, which says that nobody knows.
func (s *stage) timeoutAfterAppend(n int) {
	s.t.Helper()
	behind, err := kgo.NewClient(s.options()...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(behind.Close)
	var mu sync.Mutex
	forwarding := false
	for range n {
		s.kafka.ControlKey(produceKey, func(request kmsg.Request) (kmsg.Response, error, bool) {
			mu.Lock()
			if forwarding { // the request below: append it
				mu.Unlock()
				return nil, nil, false
			}
			forwarding = true
			mu.Unlock()
			s.kafka.SleepControl(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if _, err := behind.Request(ctx, request); err != nil {
					s.t.Errorf("append behind the relay's back: %v", err)
				}
				mu.Lock()
				forwarding = false
				mu.Unlock()
			})
			return answerProduce(request, func(string, int32) int16 { return kerr.RequestTimedOut.Code }), nil, true
		})
	}
}

// answerAll makes the cluster answer every produce request with code, appending
// nothing, until the returned function is called. It counts the requests.
func (s *stage) answerAll(code int16) (end func(), asked *atomic.Int64) {
	asked = &atomic.Int64{}
	var ended atomic.Bool
	s.kafka.ControlKey(produceKey, func(request kmsg.Request) (kmsg.Response, error, bool) {
		if ended.Load() {
			return nil, nil, false
		}
		s.kafka.KeepControl()
		asked.Add(1)
		return answerProduce(request, func(string, int32) int16 { return code }), nil, true
	})
	return func() { ended.Store(true) }, asked
}

// refusePoison makes the cluster refuse every batch in which POISON stands, as a
// broker does that validates records. The relay must not compress then.
func (s *stage) refusePoison(code int16) (end func(), refused *atomic.Int64) {
	refused = &atomic.Int64{}
	var ended atomic.Bool
	s.kafka.ControlKey(produceKey, func(request kmsg.Request) (kmsg.Response, error, bool) {
		if ended.Load() {
			return nil, nil, false
		}
		for _, topic := range request.(*kmsg.ProduceRequest).Topics {
			for _, partition := range topic.Partitions {
				if bytes.Contains(partition.Records, []byte("POISON")) {
					s.kafka.KeepControl()
					refused.Add(1)
					return answerProduce(request, func(string, int32) int16 { return code }), nil, true
				}
			}
		}
		return nil, nil, false
	})
	return func() { ended.Store(true) }, refused
}

// createTopic makes a topic with configuration.
func (s *stage) createTopic(topic string, partitions int, configs map[string]*string) {
	s.t.Helper()
	client, err := kgo.NewClient(s.options()...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	answer, err := kadm.NewClient(client).CreateTopic(s.t.Context(), int32(partitions), 1, configs, topic)
	if err != nil || answer.Err != nil {
		s.t.Fatalf("create topic %s: %v, %v", topic, err, answer.Err)
	}
}

// failNext makes the cluster answer the next produce request with code, appending
// nothing.
func (s *stage) failNext(code int16) {
	s.kafka.ControlKey(produceKey, func(request kmsg.Request) (kmsg.Response, error, bool) {
		return answerProduce(request, func(string, int32) int16 { return code }), nil, true
	})
}
