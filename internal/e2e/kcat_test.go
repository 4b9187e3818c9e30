package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// kcat produces lines, each key|value, with headers, by a program that shares no
// code with claimq.
func (s *shop) kcat(headers []string, lines ...string) {
	s.t.Helper()
	path, err := exec.LookPath("kcat")
	if err != nil {
		s.t.Fatalf("kcat is missing, which produces as other programs do: install it (Debian, Ubuntu: apt-get install kafkacat; macOS: brew install kcat): %v", err)
	}
	args := []string{"-P", "-b", s.brokers[0], "-t", s.topic, "-K", "|", "-Z", "-X", "acks=all"}
	for _, header := range headers {
		args = append(args, "-H", header)
	}
	cmd := exec.CommandContext(s.t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("kcat: %v: %s", err, out)
	}
}

type orderRow struct {
	ID, Key, Customer string
	Doc               map[string]any
	Headers           map[string]string
}

func (s *shop) orders() []orderRow {
	s.t.Helper()
	rows, err := s.db.Pool.Query(s.t.Context(), `select id, coalesce(key, 'none'), coalesce(customer, 'none'), coalesce(doc::text, 'null'), headers::text from `+s.db.Schema+`.orders order by id`)
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (orderRow, error) {
		var o orderRow
		var doc, headers []byte
		if err := row.Scan(&o.ID, &o.Key, &o.Customer, &doc, &headers); err != nil {
			return o, err
		}
		if err := json.Unmarshal(doc, &o.Doc); err != nil {
			return o, err
		}
		return o, json.Unmarshal(headers, &o.Headers)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// Another program's producer, a file, the SQL handler: the rows are right, and
// reading the topic again changes nothing, however it comes about.
func TestRunWithTheSQLHandlerFedByAnotherProducer(t *testing.T) {
	t.Parallel()
	s := newShop(t, 3)
	s.kcat([]string{"idempotency-key=a-1", "source=shop=1", "note=grüße 🌍"},
		`käse|{"order_id":"ignored","customer":"Zoë 🧀","total":12.50,"big":9007199254740993,"text":"line\nbreak \"quoted\" \u00e9\ud83d\ude00"}`)
	s.kcat([]string{"idempotency-key=a-2"}, `|{"customer":null}`)
	s.kcat([]string{"idempotency-key=a-3"}, `tombstone|`)
	many := make([]string, 500)
	for i := range many {
		many[i] = fmt.Sprintf(`k%d|{"order_id":"b-%03d","customer":"c%d"}`, i%7, i, i)
	}
	s.kcat(nil, many...)
	s.kcat(nil, many[:50]...) // repeats at other offsets

	config := s.ordersConfig()
	total := len(many) + 3
	run := claimq(t, config, "run")
	eventually(t, "all rows", func() bool { return s.ask(`select count(*) from SCHEMA.orders`) >= total })
	s.made = total
	s.waitPositions()
	run.stop()

	first := s.orders()
	if len(first) != total {
		t.Fatalf("%d rows, want %d", len(first), total)
	}
	want := []orderRow{
		{
			ID: "a-1", Key: "käse", Customer: "Zoë 🧀",
			Doc: map[string]any{
				"order_id": "ignored", "customer": "Zoë 🧀", "total": 12.5, "big": float64(9007199254740993),
				"text": "line\nbreak \"quoted\" é😀",
			},
			Headers: map[string]string{"idempotency-key": "a-1", "source": "shop=1", "note": "grüße 🌍"},
		},
		{ID: "a-2", Key: "none", Customer: "none", Doc: map[string]any{"customer": nil}, Headers: map[string]string{"idempotency-key": "a-2"}},
		{ID: "a-3", Key: "tombstone", Customer: "none", Headers: map[string]string{"idempotency-key": "a-3"}},
	}
	if diff := cmp.Diff(want, first[:3]); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if n := s.ask(`select count(*) from SCHEMA.orders where doc->>'big' = '9007199254740993'`); n != 1 {
		t.Error("a number beyond 2^53 was not kept")
	}

	// Again from the start: by order, with the queue at rest and at work.
	again := []string{"position", "set", "--queue", s.topic, "--all", "--to", "earliest", "--by", "a test", "--why", "the test reads again"}
	claimqDone(t, config, again...)
	if n := s.positions(); n != 0 {
		t.Fatalf("the positions sum up to %d after position set", n)
	}
	run = claimq(t, config, "run")
	s.waitPositions()
	claimqDone(t, config, again...)
	s.waitPositions()
	s.kcat(nil, `k|{"order_id":"c-1"}`)
	eventually(t, "the new order", func() bool { return s.ask(`select count(*) from SCHEMA.orders where id = 'c-1'`) == 1 })
	run.stop()
	if diff := cmp.Diff(first, s.orders()[:total]); diff != "" {
		t.Errorf("reading again changed rows (-before +after):\n%s", diff)
	}
	if n := s.ask(`select (select count(*) from SCHEMA.delayed) + (select count(*) from SCHEMA.dead_letters)`); n != 0 {
		t.Errorf("%d messages are delayed or dead", n)
	}
	if n := s.ask(`select count(*) from SCHEMA.audit where who = 'a test' and why = 'the test reads again'`); n != 2 {
		t.Errorf("the audit has %d of 2 orders", n)
	}
}
