package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kafkaAdmin asks Kafka about topics and groups.
type kafkaAdmin struct {
	client *kgo.Client
	admin  *kadm.Client
}

// openKafka connects to Kafka, or says within askTimeout that it cannot. The
// caller closes it.
func (e *Env) openKafka(ctx context.Context, config *Config) (*kafkaAdmin, error) {
	options, err := e.kafkaOptions(config)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, configError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		client.Close()
		return nil, kafkaError(err)
	}
	return &kafkaAdmin{client: client, admin: kadm.NewClient(client)}, nil
}

func (k *kafkaAdmin) close() { k.client.Close() }

// kafkaView is what Kafka knows of some topics, and of a group there.
type kafkaView struct {
	topics       kadm.TopicDetails
	begins, ends kadm.ListedOffsets
	committed    kadm.OffsetResponses
}

// look asks for topics' ends and a group's offsets. A topic that is not there, or
// a group that may not be seen, is left out and no error.
func (k *kafkaAdmin) look(ctx context.Context, group string, topics []string) (*kafkaView, error) {
	view := &kafkaView{}
	if len(topics) == 0 {
		return view, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var err error
	if view.topics, err = k.admin.ListTopics(ctx, topics...); err != nil {
		return nil, kafkaError(err)
	}
	var there []string
	for _, detail := range view.topics {
		if detail.Err == nil {
			there = append(there, detail.Topic)
		}
	}
	if len(there) == 0 {
		return view, nil
	}
	if view.begins, err = k.admin.ListStartOffsets(ctx, there...); err != nil {
		return nil, kafkaError(err)
	}
	if view.ends, err = k.admin.ListEndOffsets(ctx, there...); err != nil {
		return nil, kafkaError(err)
	}
	view.committed, err = k.admin.FetchOffsets(ctx, group)
	if err != nil && !notToBeSeen(err) {
		return nil, kafkaError(err)
	}
	return view, nil
}

// notToBeSeen reports that a group is not there, or not for this user to see.
func notToBeSeen(err error) bool {
	return errors.Is(err, kerr.GroupIDNotFound) || errors.Is(err, kerr.GroupAuthorizationFailed)
}

// fill adds what Kafka says of a partition. v may be nil.
func (v *kafkaView) fill(view *positionView, topicID uuid.UUID) {
	if v == nil {
		return
	}
	detail, ok := v.topics[view.Topic]
	if !ok || detail.Err != nil {
		return
	}
	if uuid.UUID(detail.ID) != topicID {
		view.Recreated = true
		return
	}
	if begin, ok := v.begins.Lookup(view.Topic, view.Partition); ok && begin.Err == nil {
		view.Begin = &begin.Offset
	}
	if end, ok := v.ends.Lookup(view.Topic, view.Partition); ok && end.Err == nil {
		view.End = &end.Offset
		if view.Position != nil {
			lag := max(end.Offset-*view.Position, 0)
			view.Lag = &lag
		}
	}
	if committed, ok := v.committed.Lookup(view.Topic, view.Partition); ok && committed.Err == nil && committed.At >= 0 {
		view.Committed = &committed.At
	}
}

// A target is where a position is to be set to: the word, or an offset, or a time.
type target struct {
	word   string // earliest or latest
	offset int64
	at     time.Time
}

// resolve asks Kafka which offset a target is, for each partition of a topic, and
// refuses one that is not there.
func (k *kafkaAdmin) resolve(ctx context.Context, topic string, partitions []int32, to target) (kadm.ListedOffsets, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	begins, err := k.admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = begins.Error()
	}
	if err != nil {
		return nil, kafkaError(err)
	}
	ends, err := k.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, kafkaError(err)
	}
	switch {
	case to.word == "earliest":
		return begins, nil
	case to.word == "latest":
		return ends, nil
	case !to.at.IsZero():
		found, err := k.admin.ListOffsetsAfterMilli(ctx, to.at.UnixMilli(), topic)
		if err == nil {
			err = found.Error()
		}
		if err != nil {
			return nil, kafkaError(err)
		}
		return found, nil
	}
	return exactly(topic, partitions, to.offset, begins, ends)
}

func exactly(topic string, partitions []int32, offset int64, begins, ends kadm.ListedOffsets) (kadm.ListedOffsets, error) {
	found := kadm.ListedOffsets{topic: map[int32]kadm.ListedOffset{}}
	for _, partition := range partitions {
		begin, _ := begins.Lookup(topic, partition)
		end, _ := ends.Lookup(topic, partition)
		if offset < begin.Offset || offset > end.Offset {
			return nil, usageError("--to %d: partition %d of %s holds the offsets from %d to %d: choose one of them, earliest or latest", offset, partition, topic, begin.Offset, end.Offset)
		}
		found[topic][partition] = kadm.ListedOffset{Topic: topic, Partition: partition, Offset: offset, LeaderEpoch: -1}
	}
	return found, nil
}

// rereadText says what a move means for the messages between.
func rereadText(from *int64, to int64) string {
	switch {
	case from == nil:
		return "had none"
	case to < *from:
		return fmt.Sprintf("%d read again", *from-to)
	case to > *from:
		return fmt.Sprintf("%d skipped", to-*from)
	default:
		return "the same"
	}
}
