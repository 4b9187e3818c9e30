package consumer

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the figures of any number of queues. The only labels are the queue's
// name and words from closed sets, so their number is bounded by the configuration.
type Metrics struct {
	messages, retries                                  *prometheus.CounterVec
	fences, isolations, recoveries, abandonments       *prometheus.CounterVec
	commitErrors, fetchErrors, ranges, pauses, forgets *prometheus.CounterVec
	lostMessages, reread, cut                          *prometheus.CounterVec
	handler, batchSize                                 *prometheus.HistogramVec
	lagMessages, lagSeconds, partitions, waiting       *prometheus.GaugeVec
}

// NewMetrics makes the figures and registers them. The error is the registerer's:
// most often that they are registered already; share one Metrics among queues.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	for _, collector := range m.collectors() {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register claimq's metrics: %w", err)
		}
	}
	return m, nil
}

func newMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "claimq", Name: name, Help: help}, append([]string{"queue"}, labels...))
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "claimq", Name: name, Help: help}, append([]string{"queue"}, labels...))
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "claimq", Name: name, Help: help, Buckets: buckets}, []string{"queue"})
	}
	return &Metrics{
		messages:     counter("messages_total", "Messages by outcome, counted when it is committed.", "outcome"),
		retries:      counter("batch_retries_total", "Batches tried again because of the database or the network, by SQLSTATE or cause. No attempt is used.", "reason"),
		fences:       counter("fenced_total", "Batches refused because another worker had taken a partition over."),
		isolations:   counter("isolations_total", "Batches run again in parts to find the message that fails."),
		recoveries:   counter("recovered_commits_total", "Commits whose answer was lost and that turned out to have happened."),
		abandonments: counter("abandoned_handlers_total", "Handlers left behind because they did not return after their context had ended."),
		commitErrors: counter("kafka_commit_errors_total", "Offset commits that Kafka refused. They are for lag tools only."),
		fetchErrors:  counter("fetch_errors_total", "Errors of fetching that reached the consumer."),
		ranges:       counter("out_of_range_total", "Fetches at a position that Kafka has no record for."),
		pauses:       counter("paused_partitions_total", "Times that fetching a partition was paused because its share of memory was used."),
		forgets:      counter("incarnation_changes_total", "Times that the database turned out to be another server, or to have lost what was acknowledged."),
		lostMessages: counter("lost_history_messages_total", "Offsets whose effects the database had acknowledged and lost; they are read again."),
		reread:       counter("offset_ahead_messages_total", "Offsets between the position and a committed offset of Kafka's that was ahead of it."),
		cut:          counter("interrupted_messages_total", "Messages whose batch was given up: shutdown, or the partition was taken away."),
		handler:      histogram("handler_seconds", "Time in handlers, for a call.", prometheus.ExponentialBuckets(0.0005, 2.5, 14)),
		batchSize:    histogram("batch_messages", "Messages of a committed batch.", prometheus.ExponentialBuckets(1, 3, 9)),
		lagMessages:  gauge("lag_messages", "Messages between the positions and the end of the partitions that this worker owns."),
		lagSeconds:   gauge("lag_seconds", "Age of the oldest message that was read and is not finished."),
		partitions:   gauge("partitions", "Partitions that this worker owns."),
		waiting:      gauge("waiting_messages", "Messages of the queue in Postgres, by state.", "state"),
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.messages, m.retries, m.fences, m.isolations, m.recoveries, m.abandonments, m.commitErrors, m.fetchErrors,
		m.ranges, m.pauses, m.forgets, m.lostMessages, m.reread, m.cut, m.handler, m.batchSize,
		m.lagMessages, m.lagSeconds, m.partitions, m.waiting,
	}
}

func (m *Metrics) outcome(queue string, f fate) { m.messages.WithLabelValues(queue, f.String()).Inc() }
func (m *Metrics) retried(queue, reason string) { m.retries.WithLabelValues(queue, reason).Inc() }
func (m *Metrics) fenced(queue string)          { m.fences.WithLabelValues(queue).Inc() }
func (m *Metrics) halved(queue string)          { m.isolations.WithLabelValues(queue).Inc() }
func (m *Metrics) recovered(queue string)       { m.recoveries.WithLabelValues(queue).Inc() }
func (m *Metrics) abandoned(queue string)       { m.abandonments.WithLabelValues(queue).Inc() }
func (m *Metrics) commitError(queue string)     { m.commitErrors.WithLabelValues(queue).Inc() }
func (m *Metrics) fetchError(queue string)      { m.fetchErrors.WithLabelValues(queue).Inc() }
func (m *Metrics) outOfRange(queue string)      { m.ranges.WithLabelValues(queue).Inc() }
func (m *Metrics) forgot(queue string)          { m.forgets.WithLabelValues(queue).Inc() }
func (m *Metrics) paused(queue string, n int)   { m.pauses.WithLabelValues(queue).Add(float64(n)) }

func (m *Metrics) lostHistory(queue string, n int64) {
	m.lostMessages.WithLabelValues(queue).Add(float64(n))
}

func (m *Metrics) rereads(queue string, n int64)   { m.reread.WithLabelValues(queue).Add(float64(n)) }
func (m *Metrics) interrupted(queue string, n int) { m.cut.WithLabelValues(queue).Add(float64(n)) }
func (m *Metrics) assigned(queue string, n int)    { m.partitions.WithLabelValues(queue).Set(float64(n)) }

func (m *Metrics) batch(queue string, n int) { m.batchSize.WithLabelValues(queue).Observe(float64(n)) }

func (m *Metrics) handled(queue string, took time.Duration) {
	m.handler.WithLabelValues(queue).Observe(took.Seconds())
}

func (m *Metrics) lag(queue string, messages int64, age time.Duration) {
	m.lagMessages.WithLabelValues(queue).Set(float64(messages))
	m.lagSeconds.WithLabelValues(queue).Set(age.Seconds())
}

func (m *Metrics) waits(queue, state string, n int64) {
	m.waiting.WithLabelValues(queue, state).Set(float64(n))
}
