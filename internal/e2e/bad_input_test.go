package e2e

import (
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/pgtest"
)

// What waiting does not cure ends `claimq run` with a code and a sentence that
// names the place and what to do; a right run afterwards does all of the work.
func TestRunEndsWithWhatAPersonCanActOn(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	s.kcat(nil, `k1|{"order_id":"o-1"}`, `k2|{"order_id":"o-2"}`)
	right := s.ordersConfig()
	empty := pgtest.NewEmpty(t, pgtest.DSN(t))
	newer := pgtest.New(t)
	if _, err := newer.Pool.Exec(t.Context(), `update `+newer.Schema+`.schema_version set version = 9000`); err != nil {
		t.Fatal(err)
	}
	guarded := pgtest.Server(t, localpg.Config{Password: "right"})

	swap := func(old, other string) string {
		if !strings.Contains(right, old) {
			t.Fatalf("the configuration has no %q:\n%s", old, right)
		}
		return strings.Replace(right, old, other, 1)
	}
	dsn, schema := "dsn: "+s.db.DSN, "schema: "+s.db.Schema
	topics := "topics: " + s.topic
	for name, c := range map[string]struct {
		config string
		code   int
		says   []string
	}{
		"an unknown field": {
			swap("start: earliest", "strat: earliest"), 78, []string{"claimq.yaml:", "queues." + s.topic + ".strat", "did you mean start?"},
		},
		"a wrong value": {
			swap("start: earliest", "start: yesterday"), 78, []string{"claimq.yaml:", "start", "yesterday", "earliest, latest"},
		},
		"no id rule": {
			swap("id: [header:idempotency-key, json:order_id]", "order: key"), 78, []string{"claimq.yaml:", ".id", "header:idempotency-key"},
		},
		"a statement that the database refuses": {
			swap("m.doc->>'customer'", "m.docs->>'customer'"), 78, []string{"claimq.yaml:", "handler", "docs"},
		},
		"a missing topic": {
			swap(topics, "topics: no-such-topic-"+s.db.Schema), 1, []string{s.topic, "no-such-topic-" + s.db.Schema},
		},
		"no schema": {
			swap(schema, "schema: "+empty.Schema), 1, []string{empty.Schema, "claimq migrate up"},
		},
		"a newer schema": {
			swap(schema, "schema: "+newer.Schema), 1, []string{newer.Schema, "9000", "start a newer claimq"},
		},
		"a wrong password": {
			swap(dsn, "dsn: "+strings.Replace(guarded.DSN(""), "right", "wrong", 1)), 1, []string{"password is wrong", "database.dsn"},
		},
		"no such database": {
			swap(dsn, "dsn: "+guarded.DSN("nowhere")), 1, []string{"nowhere", "create it", "database.dsn"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, output := claimq(t, c.config, "run").ended()
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, text := range c.says {
				if !strings.Contains(output, text) {
					t.Errorf("it does not say %q:\n%s", text, output)
				}
			}
			for _, secret := range []string{":right@", ":wrong@"} {
				if strings.Contains(output, secret) {
					t.Errorf("it tells a password:\n%s", output)
				}
			}
		})
	}

	run := claimq(t, right, "run")
	eventually(t, "a right run does everything", func() bool { return s.ask(`select count(*) from SCHEMA.orders`) == 2 })
	run.stop()
}

// Bad messages become dead letters with a reason, each by itself; the others are
// handled, and the process stays up.
func TestRunMakesDeadLettersOfBadMessagesAndGoesOn(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	config := s.ordersConfig("order: none")
	run := claimq(t, config, "run")
	s.kcat([]string{"idempotency-key=bad-1"}, `k|{not json`)
	s.kcat([]string{"idempotency-key=bad-2"}, "k|\xc3\x28")
	s.kcat([]string{"idempotency-key=bad-3"}, `k|{"nul":"\u0000"}`)
	s.kcat(nil, `k|{"no":"id"}`, `k|`, `k|{"order_id":""}`, `k|[]`, `k|also not json`)
	s.kcat([]string{"idempotency-key=null"}, `k|`)
	s.kcat([]string{"idempotency-key=good"}, `k|{"customer":"c"}`)
	s.kcat(nil, `k|{"order_id":"good-2"}`)
	eventually(t, "the good ones", func() bool { return s.ask(`select count(*) from SCHEMA.orders`) == 3 })
	want := map[string]int{"undecodable": 4, "missing_id": 4}
	for reason, n := range want {
		eventually(t, fmt.Sprintf("%d dead letters are %s", n, reason), func() bool {
			return s.ask(`select count(*) from SCHEMA.dead_letters where reason = '`+reason+`' and error_message <> ''`) == n
		})
	}
	if n := s.ask(`select count(*) from SCHEMA.dead_letters`); n != 8 {
		t.Errorf("%d dead letters, want 8", n)
	}
	run.stop()
	run = claimq(t, config, "run")
	s.kcat(nil, `k|{"order_id":"good-3"}`)
	eventually(t, "it goes on after a restart", func() bool { return s.ask(`select count(*) from SCHEMA.orders`) == 4 })
	run.stop()
	if n := s.ask(`select count(*) from SCHEMA.dead_letters`); n != 8 {
		t.Errorf("%d dead letters after a restart, want 8", n)
	}
}

// A broker or a database that is out of reach is waited for: the process is alive
// and not ready, says why, ends when asked to, and works once they are there.
func TestRunWaitsForWhatIsOutOfReach(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.kcat(nil, `k|{"order_id":"o-1"}`)
	right := s.ordersConfig()
	for name, c := range map[string]struct {
		place, real, says string
	}{
		"Kafka":    {"brokers: ", s.brokers[0], "kafka.brokers"},
		"database": {"", pgtest.HostPort(t, s.db.DSN), "database"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			nobody := listener.Addr().String()
			if err := listener.Close(); err != nil {
				t.Fatal(err)
			}
			run := claimq(t, strings.Replace(right, c.place+c.real, c.place+nobody, 1), "run")
			eventually(t, "it says what it waits for, and where", func() bool {
				return run.said("cannot be reached yet") && run.said(c.says) && run.said(nobody)
			})
			if status := run.get("/livez"); status != http.StatusOK {
				t.Errorf("/livez answers %d while it waits, want 200", status)
			}
			if status := run.get("/readyz"); status != http.StatusServiceUnavailable {
				t.Errorf("/readyz answers %d while it waits, want 503", status)
			}
			run.stop()
		})
	}
	run := claimq(t, right, "run")
	eventually(t, "a right run does everything", func() bool { return s.ask(`select count(*) from SCHEMA.orders`) == 1 })
	eventually(t, "it is ready", func() bool { return run.get("/readyz") == http.StatusOK })
	run.stop()
}

var servingAt = regexp.MustCompile(`/readyz.* address=(\S+)`)

// get asks a `claimq run` over HTTP.
func (p *process) get(path string) (status int) {
	p.t.Helper()
	var address string
	eventually(p.t, "it serves", func() bool {
		if match := servingAt.FindStringSubmatch(p.output()); match != nil {
			address = match[1]
		}
		return address != ""
	})
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}
