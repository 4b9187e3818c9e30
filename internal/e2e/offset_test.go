package e2e

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	saysAhead  = "Kafka's committed offset is ahead of the position"
	saysBehind = "Kafka's committed offset is behind the position"
)

// Somebody moves the group's offsets in Kafka, ahead in one partition and back in
// the other. The position is Postgres': it is told, and nothing is skipped or done
// again.
func TestAnOffsetMovedByHandIsReportedAndIgnored(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	p := worker(t, s.order("first"))
	s.produce(200)
	s.waitDone()
	s.waitPositions()
	p.stop()

	// While the group is empty Kafka takes offsets from anybody.
	s.produce(200)
	ends, err := s.admin.ListEndOffsets(t.Context(), s.topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(s.topic, 0)
	offsets := kadm.Offsets{}
	offsets.AddOffset(s.topic, 0, end.Offset, -1)
	offsets.AddOffset(s.topic, 1, 0, -1)
	if err := s.admin.CommitAllOffsets(t.Context(), s.topic, offsets); err != nil {
		t.Fatal(err)
	}
	p = worker(t, s.order("second"))
	s.waitDone()
	s.waitPositions()
	if !p.said(saysAhead) || !p.said(saysBehind) {
		t.Errorf("the moved offsets are not reported:\n%s", p.output())
	}
	s.check()

	// While it has members only a transaction can move them.
	s.moveWhileRunning(end.Offset*10, 0)
	s.produce(200)
	s.waitDone()
	s.waitPositions()
	s.check()
	p.stop()

	// The last word is the worker's, after which the offsets are of use again.
	committed, err := s.admin.FetchOffsetsForTopics(t.Context(), s.topic, s.topic)
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	committed.Each(func(o kadm.OffsetResponse) { sum += o.At })
	if int(sum) != s.made {
		t.Errorf("Kafka's offsets sum up to %d after a clean stop, want %d", sum, s.made)
	}
}

// moveWhileRunning commits offsets of the group in a Kafka transaction of its own.
func (s *shop) moveWhileRunning(offsets ...int64) {
	s.t.Helper()
	group, id := s.topic, s.topic+"-mover"
	c := client(s.t, s.brokers, kgo.TransactionalID(id))
	if err := c.BeginTransaction(); err != nil {
		s.t.Fatal(err)
	}
	producer, epoch, err := c.ProducerID(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = id, producer, epoch, group
	if response, err := add.RequestWith(s.t.Context(), c); err != nil || response.ErrorCode != 0 {
		s.t.Fatalf("add the group to a transaction: %v, code %d", err, response.ErrorCode)
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group = id, producer, epoch, group
	commit.Generation = -1
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	details, err := s.admin.ListTopics(s.t.Context(), s.topic)
	if err != nil {
		s.t.Fatal(err)
	}
	topic.Topic, topic.TopicID = s.topic, details[s.topic].ID
	for number, offset := range offsets {
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Partition, partition.Offset, partition.LeaderEpoch = int32(number), offset, -1
		topic.Partitions = append(topic.Partitions, partition)
	}
	commit.Topics = append(commit.Topics, topic)
	response, err := commit.RequestWith(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, topic := range response.Topics {
		for _, partition := range topic.Partitions {
			if partition.ErrorCode != 0 {
				s.t.Fatalf("commit in a transaction: code %d", partition.ErrorCode)
			}
		}
	}
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = id, producer, epoch, true
	if response, err := end.RequestWith(s.t.Context(), c); err != nil || response.ErrorCode != 0 {
		s.t.Fatalf("end the transaction: %v, code %d", err, response.ErrorCode)
	}
}
