package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgtest"
)

func TestEffectsAreRefusedByPlace(t *testing.T) {
	t.Parallel()
	for effects, want := range map[string]string{
		"[{topic: out}]":                                        "queues.q.handler.effects[0].name: is missing",
		"[{name: done}]":                                        "queues.q.handler.effects[0].topic: is missing",
		"[{name: done, topic: out, key: jsn:a}]":                "queues.q.handler.effects[0].key: ",
		"[{name: done, topic: out, value: 'join('}]":            "queues.q.handler.effects[0].value: ",
		"[{name: a, topic: out}, {name: a, topic: other}]":      "two effects are named",
		"[{name: a, topic: out}, {name: b, topicc: other}]":     "topicc",
		"[{name: a, topic: out, copy_headers: perhaps}]":        "copy_headers",
		"[{name: a, topic: out}, {name: '', topic: other}]":     "queues.q.handler.effects[1].name: is missing",
		"[{name: a, topic: out}, {name: b, topic: '', key: k}]": "queues.q.handler.effects[1].topic: is missing",
	} {
		config, err := loadText(t, "queues:\n  q:\n    topics: [a]\n    id: key\n    handler: {sql: 'select unnest(@ids)', effects: "+effects+"}\n")
		if err == nil {
			_, _, err = config.consumerConfig("q")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a word on %q", effects, err, want)
		}
	}
}

// From a file alone: a message becomes a row and a record of another topic, once.
func TestAnEffectFromTheFileIsPublished(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t, "a", "a.done")
	queue := strings.TrimSuffix(queueYAML("first", table, "a"), "\n") + "\n"
	queue = strings.Replace(queue, "handler: {", "handler: {effects: [{name: done, topic: a.done, key: 'header:id', value: 'const:done', copy_headers: false}], ", 1)
	p := start(t, newTestEnv(t), "-c", runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), queue))
	p.waitReady()
	produce(t, kafka.ListenAddrs(), "a", "1", "2", "2", "3")

	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.ConsumeTopics("a.done"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	found := map[string]int{}
	for deadline := time.Now().Add(30 * time.Second); len(found) < 3 && time.Now().Before(deadline); {
		client.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
			if string(r.Value) != "done" {
				t.Errorf("value %q", r.Value)
			}
			found[string(r.Key)]++
		})
	}
	if len(found) != 3 || found["1"] != 1 || found["2"] != 1 || found["3"] != 1 {
		t.Errorf("published %v, want 1, 2 and 3 once each", found)
	}
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d\n%s", code, p.stderr)
	}
}
