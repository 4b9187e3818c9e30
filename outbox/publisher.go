package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/claimq/claimq/internal/kafkaclient"
)

// A publisher sends rows in order. It belongs to one goroutine, and is thrown away
// with its client when an outcome is not known.
//
// It sends in waves. A wave is buffered as a whole before anything of it leaves
// (manual flushing), is small enough that no partition gets more than one batch of
// it, and the next one follows when all of it is answered. So when a broker
// refuses a batch, nothing that came after it in that partition is out or on its
// way. Without the waves that would hang on two things: that no record is handed
// over between a refusal and its arrival here, and that the client never has a
// second batch on the way to a broker that has not yet taken one, since such a
// broker appends whatever sequence number comes first.
type publisher struct {
	client   *kgo.Client
	maxBatch int
	creates  bool            // topics come into being when they are produced to
	known    map[string]bool // topics that exist
	loaded   map[string]bool // topics whose partitions the client knows
	limits   map[string]int  // what a batch of a topic may have, learned from refusals
}

// A refusal is a row that is not out, and why.
type refusal struct {
	row    *outRow
	scope  string
	reason string
	tried  bool // false: it waits behind another
}

// A waiter waits for done, and gives up with an error when whatever it watches
// says so: what was sent then has an unknown outcome.
type waiter func(done <-chan struct{}) error

// clientOptions are a relay's own, after the user's. Cancelling a record is never
// allowed and no record has a deadline: a client that cancels what a broker may
// have appended can neither say that the record is out nor that it is not.
func clientOptions(user []kgo.Opt) []kgo.Opt {
	return append(append([]kgo.Opt{}, user...),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ManualFlushing(),
		kgo.MaxBufferedRecords(1<<20),
		kgo.UnknownTopicRetries(2),
	)
}

func newPublisher(user []kgo.Opt) (*publisher, error) {
	client, err := kafkaclient.New(clientOptions(user)...)
	if err != nil {
		return nil, fmt.Errorf("outbox: the relay's Kafka client: %w", err)
	}
	p := &publisher{client: client, known: map[string]bool{}, loaded: map[string]bool{}, limits: map[string]int{}}
	fail := func(why string) (*publisher, error) {
		client.Close()
		return nil, fmt.Errorf("outbox: the relay's Kafka options %s", why)
	}
	if disabled, _ := client.OptValue(kgo.DisableIdempotentWrite).(bool); disabled {
		return fail("disable idempotent writes: without them records can change places")
	}
	if id, _ := client.OptValue(kgo.TransactionalID).(string); id != "" {
		return fail("name a transactional id: the relay does not use transactions")
	}
	if allowed, _ := client.OptValue(kgo.AllowIdempotentProduceCancellation).(bool); allowed {
		return fail("allow idempotent records to be cancelled: their outcome would not be known")
	}
	p.creates, _ = client.OptValue(kgo.AllowAutoTopicCreation).(bool)
	maxBatch, ok := client.OptValue(kgo.ProducerBatchMaxBytes).(int32)
	if !ok {
		return fail("do not tell the largest batch")
	}
	p.maxBatch = int(maxBatch) - 128 // a batch's own header
	return p, nil
}

// close gives up whatever is on its way.
func (p *publisher) close() { p.client.Close() }

// publish sends rows, which are in order, and returns those that are not out. An
// error means that the outcome of the rest is not known: the publisher is to be
// closed, and all rows are to be sent again by another.
func (p *publisher) publish(ctx context.Context, wait waiter, rows []outRow) ([]refusal, error) {
	missing, err := p.missingTopics(ctx, wait, rows)
	if err != nil {
		return nil, err
	}
	d := &delivery{publisher: p, wait: wait, blocked: map[orderKey]bool{}}
	sent, err := p.load(d, rows, missing)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		row := &rows[i]
		switch {
		case sent[row.seq]:
		case d.waits(row):
		case row.held != "":
			d.refuse(row, row.held, heldBehind(row.held), false)
		case missing[row.topic] != nil:
			d.refuse(row, scopeTopic, reasonText(missing[row.topic]), true)
		default:
			if err := d.add(row); err != nil {
				return nil, err
			}
		}
	}
	if err := d.flush(); err != nil {
		return nil, err
	}
	return d.refused, nil
}

// load sends the first row of each topic that the client does not know yet, alone
// in its topic, and returns which those were. Records of an unknown topic are kept
// by the client until it has the partitions, and then leave one by one, as a flush
// is going on: a wave of them would not be in one piece.
func (p *publisher) load(d *delivery, rows []outRow, missing map[string]error) (sent map[int64]bool, err error) {
	var first []*outRow
	asked := map[string]bool{}
	for i := range rows {
		row := &rows[i]
		if row.held == "" && missing[row.topic] == nil && !p.loaded[row.topic] && !asked[row.topic] {
			asked[row.topic] = true
			first = append(first, row)
		}
	}
	if len(first) == 0 {
		return nil, nil
	}
	sent = make(map[int64]bool, len(first))
	for _, row := range first {
		sent[row.seq] = true
		p.loaded[row.topic] = true
	}
	return sent, d.settle(first)
}

func heldBehind(scope string) string {
	if scope == scopeTopic {
		return "the topic takes no records"
	}
	return "an earlier record of its key is held"
}

// send is one wave: it returns an error for each row, or one that means that the
// outcome is not known.
func (p *publisher) send(wait waiter, rows []*outRow) ([]error, error) {
	errs := make([]error, len(rows))
	var open sync.WaitGroup
	open.Add(len(rows))
	for i, row := range rows {
		// No context: see clientOptions.
		p.client.Produce(context.Background(), row.record(), func(_ *kgo.Record, err error) {
			errs[i] = err
			open.Done()
		})
	}
	done := make(chan struct{})
	go func() { // ends with the records, or with the client
		defer close(done)
		// The wave is over when this has returned, too: while one flush goes on the
		// client sends whatever it is handed at once, and the next wave would leave
		// in pieces, of which a later one is taken where an earlier one was refused.
		_ = p.client.Flush(context.Background())
		open.Wait()
	}()
	if err := wait(done); err != nil {
		return nil, err
	}
	for _, err := range errs {
		if err != nil && scopeOf(err) == "" {
			return nil, fmt.Errorf("outbox: publish: %w", err)
		}
	}
	return errs, nil
}

// missingTopics asks for the topics of rows that have not been seen yet, so that
// one that does not exist is known before the client buffers for it: the client
// would wait for it, and a wave with it.
func (p *publisher) missingTopics(ctx context.Context, wait waiter, rows []outRow) (map[string]error, error) {
	if p.creates {
		return nil, nil
	}
	request := kmsg.NewPtrMetadataRequest()
	asked := map[string]bool{}
	for i := range rows {
		if topic := rows[i].topic; rows[i].held == "" && !p.known[topic] && !asked[topic] {
			asked[topic] = true
			entry := kmsg.NewMetadataRequestTopic()
			entry.Topic = &topic
			request.Topics = append(request.Topics, entry)
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		response *kmsg.MetadataResponse
		err      error
	)
	done := make(chan struct{})
	go func() {
		defer close(done)
		response, err = request.RequestWith(ctx, p.client)
	}()
	if waitErr := wait(done); waitErr != nil {
		cancel()
		<-done
		return nil, waitErr
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: ask the brokers for topics: %w", err)
	}
	missing := map[string]error{}
	for i := range response.Topics {
		topic := &response.Topics[i]
		if topic.Topic == nil {
			continue
		}
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil && scopeOf(err) != "" {
			missing[*topic.Topic] = err
			continue
		}
		p.known[*topic.Topic] = true
	}
	return missing, nil
}

// scopeOf tells what an answer of Kafka's says about a record: that its topic
// takes none, that this one is not taken, or ("") nothing at all, which leaves the
// outcome open. Only what a broker refuses for good before it appends is listed.
func scopeOf(err error) string {
	for _, known := range []error{
		kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException, kerr.TopicAuthorizationFailed,
	} {
		if errors.Is(err, known) {
			return scopeTopic
		}
	}
	for _, known := range []error{
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp,
		kerr.PolicyViolation, kerr.UnsupportedCompressionType,
	} {
		if errors.Is(err, known) {
			return scopeRow
		}
	}
	return ""
}
