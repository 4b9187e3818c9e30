package cli

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/outbox"
)

func TestReadinessNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := newRunHealth([]string{"orders", "returns"})
	want := func(problems ...problem) {
		t.Helper()
		if diff := cmp.Diff(problems, h.problems()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	starting := "the queue does not run: it is starting"
	want(problem{"orders", starting}, problem{"returns", starting})
	h.waiting("Kafka", errors.New("no broker"))
	want(problem{"", "Kafka cannot be reached: no broker"}, problem{"orders", starting}, problem{"returns", starting})
	h.arrived("Kafka")
	stuck := []string{`topic "orders", partition 3: stuck at offset 17 for 1m5s`}
	h.queueRuns("orders", func() consumer.Health { return consumer.Health{Problems: stuck} })
	want(problem{"orders", stuck[0]}, problem{"returns", starting})
	stuck = nil
	h.queueWaits("returns", errors.New("down"))
	want(problem{"returns", "the queue does not run: down"})
	h.queueRuns("returns", func() consumer.Health { return consumer.Health{} })
	want()
	h.outboxIs("outbox: late")
	want(problem{"", "outbox: late"})
	h.outboxIs("")
	want()
	h.stopping()
	want(problem{"", "the process is stopping"})
}

func TestProbesAnswerInJSON(t *testing.T) {
	t.Parallel()
	metrics, err := newRunMetrics()
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{health: newRunHealth(nil), metrics: metrics}
	ask := func(method, path string) (int, string) {
		response := httptest.NewRecorder()
		r.handler().ServeHTTP(response, httptest.NewRequest(method, path, http.NoBody))
		return response.Code, response.Body.String()
	}
	r.health.queueRuns("q", func() consumer.Health { return consumer.Health{Problems: []string{"topic \"t\", partition 3: stuck"}} })
	for _, test := range []struct {
		method, path, body string
		code               int
	}{
		{"GET", "/livez", `{"live":true}` + "\n", 200},
		{"GET", "/readyz", `{"ready":false,"problems":[{"queue":"q","problem":"topic \"t\", partition 3: stuck"}]}` + "\n", 503},
		{"POST", "/readyz", "Method Not Allowed\n", 405},
		{"GET", "/", "404 page not found\n", 404},
		{"GET", "/debug/pprof/", "404 page not found\n", 404},
	} {
		if code, body := ask(test.method, test.path); code != test.code || body != test.body {
			t.Errorf("%s %s: %d %s", test.method, test.path, code, body)
		}
	}
}

func TestALateOutboxIsAProblem(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		depth outbox.Depth
		want  string
	}{
		{outbox.Depth{}, ""},
		{outbox.Depth{Rows: 5, Oldest: time.Minute}, ""},
		{outbox.Depth{Rows: 5, Oldest: 3 * time.Minute}, "outbox: 5 records wait, the oldest for 3m0s: no relay runs, or it cannot reach Kafka"},
	} {
		if got := lateness(test.depth); got != test.want {
			t.Errorf("%+v: %q", test.depth, got)
		}
	}
}

// A queue that is started again, and the clients of one relay, register the same
// figures again and at once: kprom panics over that.
func TestFiguresOfClientsThatFollowOneAnotherDoNotCollide(t *testing.T) {
	t.Parallel()
	metrics, err := newRunMetrics()
	if err != nil {
		t.Fatal(err)
	}
	client := func(hooks kgo.Opt) *kgo.Client {
		client, err := kgo.NewClient(hooks, kgo.SeedBrokers("127.0.0.1:1"))
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	shared := metrics.relayHooks()
	for _, hooks := range []func() kgo.Opt{
		func() kgo.Opt { return metrics.queueHooks("q") },
		func() kgo.Opt { return shared },
	} {
		first := client(hooks())
		second := client(hooks())
		first.Close()
		second.Close()
		client(hooks()).Close()
	}
	if _, err := metrics.registry.Gather(); err != nil {
		t.Error(err)
	}
	if err := (replacing{metrics.registry}).Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: "claimq_messages_total", Help: "another"})); err == nil {
		t.Error("a figure of another kind takes a name that is taken")
	}
}

// A queue that cannot start because of something that passes is tried again, and
// says so meanwhile; one that never can ends.
func TestAQueueIsTriedAgainUntilItsBrokersAnswer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t, "a")
	brokers := newGate(t, kafka.ListenAddrs()[0])
	env := newTestEnv(t)
	env.flags.config = runFile(t, db.DSN, db.Schema, []string{brokers.address()}, queueYAML("first", table, "a"))
	config, err := env.load()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRunner(&env.Env, config, runFlags{})
	if err != nil {
		t.Fatal(err)
	}
	r.pool = db.Pool
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- r.runQueue(ctx, r.queues[0]) }()
	eventually(t, "it waits", func() bool {
		problems := r.health.problems()
		return len(problems) == 1 && strings.HasPrefix(problems[0].Problem, "the queue does not run: ") && problems[0].Problem != "the queue does not run: it is starting"
	})
	brokers.open()
	eventually(t, "it runs", func() bool { return len(r.health.problems()) == 0 })
	stop()
	if err := <-ended; err != nil {
		t.Errorf("after its context ended: %v", err)
	}
	if !strings.Contains(env.stderr.String(), "the queue cannot run; trying again") {
		t.Errorf("the log does not tell:\n%s", env.stderr)
	}

	r.queues[0].Topics = []string{"none"}
	var missing *consumer.MissingTopicError
	if err := r.runQueue(t.Context(), r.queues[0]); !errors.As(err, &missing) {
		t.Errorf("a missing topic: %v", err)
	}
}
