package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/outbox"
)

// runMetrics is what /metrics shows.
type runMetrics struct {
	registry *prometheus.Registry
	queues   *consumer.Metrics
	relay    atomic.Pointer[outbox.Relay]
	depth    atomic.Pointer[outbox.Depth]
}

func newRunMetrics() (*runMetrics, error) {
	m := &runMetrics{registry: prometheus.NewRegistry()}
	var err error
	if m.queues, err = consumer.NewMetrics(m.registry); err != nil {
		return nil, err
	}
	for _, collector := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m,
	} {
		if err := m.registry.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// The figures of the outbox. Those of the relay are this process' own, the depth is
// the whole outbox's, the same in every process.
var (
	relayPublished = prometheus.NewDesc("claimq_relay_published_total", "Records of the outbox that brokers have acknowledged, copies included.", nil, nil)
	relaySetAside  = prometheus.NewDesc("claimq_relay_set_aside_total", "Records that could not be sent and were set aside, with those that wait behind them.", nil, nil)
	relayRetried   = prometheus.NewDesc("claimq_relay_retried_total", "Records that were set aside and went out later.", nil, nil)
	relayFailures  = prometheus.NewDesc("claimq_relay_failures_total", "Rounds of the relay that ended with an error.", nil, nil)
	relayLeased    = prometheus.NewDesc("claimq_relay_leased_slices", "Slices of the outbox that this process relays.", nil, nil)
	relayLag       = prometheus.NewDesc("claimq_relay_lag_seconds", "Time since the outbox was last seen empty, over the slices that this process relays.", nil, nil)
	outboxDepth    = prometheus.NewDesc("claimq_outbox_depth_records", "Committed records that are not yet published, at most some 10000 a slice.", nil, nil)
	outboxOldest   = prometheus.NewDesc("claimq_outbox_oldest_seconds", "Age of the oldest record that is not yet published.", nil, nil)
	outboxHeld     = prometheus.NewDesc("claimq_outbox_held_records", "Records that are set aside.", nil, nil)
)

// Describe is of prometheus.Collector.
func (m *runMetrics) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		relayPublished, relaySetAside, relayRetried, relayFailures, relayLeased, relayLag, outboxDepth, outboxOldest, outboxHeld,
	} {
		descs <- desc
	}
}

// Collect is of prometheus.Collector.
func (m *runMetrics) Collect(metrics chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
		metrics <- prometheus.MustNewConstMetric(desc, kind, value)
	}
	if relay := m.relay.Load(); relay != nil {
		stats := relay.Stats()
		send(relayPublished, prometheus.CounterValue, float64(stats.Published))
		send(relaySetAside, prometheus.CounterValue, float64(stats.SetAside))
		send(relayRetried, prometheus.CounterValue, float64(stats.Retried))
		send(relayFailures, prometheus.CounterValue, float64(stats.Failures))
		send(relayLeased, prometheus.GaugeValue, float64(stats.Leased))
		send(relayLag, prometheus.GaugeValue, stats.Lag.Seconds())
	}
	if depth := m.depth.Load(); depth != nil {
		send(outboxDepth, prometheus.GaugeValue, float64(depth.Rows))
		send(outboxOldest, prometheus.GaugeValue, depth.Oldest.Seconds())
		send(outboxHeld, prometheus.GaugeValue, float64(depth.Held))
	}
}

const (
	// sampleEvery is how often the outbox is looked at for its figures.
	sampleEvery = 15 * time.Second
	// outboxLate is how old a record may get in the outbox before that is a problem.
	outboxLate = 2 * time.Minute
)

// sampleOutbox keeps the outbox's depth current: a scrape must not wait for the database.
func (r *runner) sampleOutbox(ctx context.Context) {
	box, err := outbox.New(outbox.Config{Schema: r.config.schema()})
	if err != nil {
		r.logger.Error("the outbox cannot be looked at", "error", err)
		return
	}
	for {
		query, cancel := context.WithTimeout(ctx, askTimeout)
		depth, err := box.Depth(query, r.pool)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.metrics.depth.Store(nil)
		default:
			r.metrics.depth.Store(&depth)
			r.health.outboxIs(lateness(depth))
		}
		if !sleep(ctx, sampleEvery) {
			return
		}
	}
}

func lateness(depth outbox.Depth) string {
	if depth.Oldest < outboxLate {
		return ""
	}
	return fmt.Sprintf("outbox: %d records wait, the oldest for %s: no relay runs, or it cannot reach Kafka", depth.Rows, depth.Oldest.Round(time.Second))
}

// queueHooks make the figures of a queue's Kafka client. A new one is made for each client.
func (m *runMetrics) queueHooks(queue string) kgo.Opt {
	return kgo.WithHooks(clientMetrics(replacing{m.registry}, "queue "+queue))
}

// relayHooks make the figures of the relay's clients.
func (m *runMetrics) relayHooks() kgo.Opt {
	return kgo.WithHooks(&sharedHooks{Metrics: clientMetrics(shareable{replacing{m.registry}}, "relay")})
}

func clientMetrics(registerer prometheus.Registerer, name string) *kprom.Metrics {
	return kprom.NewMetrics("claimq_kafka",
		kprom.Registerer(registerer),
		kprom.WithStaticLabel(prometheus.Labels{"client": name}))
}

// sharedHooks let several clients, one after another or at once, count into the
// same figures. kprom itself makes new ones for each client, which two that live at
// once cannot both register.
type sharedHooks struct {
	*kprom.Metrics
	once sync.Once
}

// OnNewClient makes the figures for the first client only.
func (h *sharedHooks) OnNewClient(client *kgo.Client) {
	h.once.Do(func() { h.Metrics.OnNewClient(client) })
}

// OnClientClosed leaves the figures for the next client.
func (*sharedHooks) OnClientClosed(*kgo.Client) {}

// replacing is a registry in which what is registered again takes the place of the
// one before: a consumer that is made anew has new figures under old names, and
// whether its old client is closed by then is not for a registry to panic over.
type replacing struct{ *prometheus.Registry }

// Register is of prometheus.Registerer.
func (r replacing) Register(c prometheus.Collector) error {
	err := r.Registry.Register(c)
	if before, taken := errors.AsType[prometheus.AlreadyRegisteredError](err); taken {
		r.Unregister(before.ExistingCollector)
		return r.Registry.Register(c)
	}
	return err
}

// MustRegister is of prometheus.Registerer.
func (r replacing) MustRegister(all ...prometheus.Collector) { mustRegister(r, all) }

func mustRegister(r prometheus.Registerer, all []prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err) // as the interface says
		}
	}
}

// shareable leaves out figures that are read from one client, which would stand for
// all of them.
type shareable struct{ replacing }

// Register is of prometheus.Registerer.
func (s shareable) Register(c prometheus.Collector) error {
	if _, single := c.(prometheus.Metric); single {
		return nil
	}
	return s.replacing.Register(c)
}

// MustRegister is of prometheus.Registerer.
func (s shareable) MustRegister(all ...prometheus.Collector) { mustRegister(s, all) }
