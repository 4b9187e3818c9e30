package consumer

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
)

const planRows = 20_000

// The statements that every batch runs are planned once, on a connection that has
// seen empty tables only, and kept while those fill: the worst that a long-lived
// worker can have. They must read a few pages for each thing asked and no more.
func TestPlansMadeOnEmptyTablesHoldWhenTheyFill(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schema := pgschema.Schema(db.Schema)
	sql := newStatements(schema)
	worker, filler := db.Conn(), db.Conn()
	exec := func(conn *pgx.Conn, text string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), schema.SQL(text), args...); err != nil {
			t.Fatalf("%.300s: %v", text, err)
		}
	}
	var queue, topic int
	if err := filler.QueryRow(t.Context(), schema.SQL(`insert into claimq.queues (name, group_name, rule) values ('q', 'q', 'r') returning id`)).Scan(&queue); err != nil {
		t.Fatal(err)
	}
	if err := filler.QueryRow(t.Context(), schema.SQL(`insert into claimq.topics (topic_id, name) values (gen_random_uuid(), 't') returning id`)).Scan(&topic); err != nil {
		t.Fatal(err)
	}
	claims, keys := make([]uuid.UUID, 300), make([]uuid.UUID, 300)
	for i := range claims {
		claims[i], keys[i] = uuid.New(), uuid.New()
	}
	position := uuid.New()
	for _, table := range []string{"delayed", "delayed_keys", "dead_letters", "positions"} {
		exec(filler, `vacuum claimq.`+table) // then the planner believes that it is empty
	}
	exec(worker, `set plan_cache_mode = force_generic_plan`)
	exec(worker, `set enable_seqscan = off`)
	exec(worker, `set enable_hashjoin = off`)
	exec(worker, `set enable_mergejoin = off`)
	calls := map[string]string{
		"known":  `execute known(` + strconv.Itoa(queue) + `, '{` + strconv.Itoa(topic) + `}', '{0}', '{100}', '{400}', '` + uuids(claims) + `', '` + uuids(keys) + `')`,
		"exists": `execute exists_(` + quoted(position) + `)`,
	}
	exec(worker, `prepare known as `+sql.known)
	exec(worker, `prepare exists_ as `+sql.positionExists[0])
	for _, call := range calls {
		exec(worker, "explain "+call)
	}

	exec(filler, `set session_replication_role = 'replica'`)
	exec(filler, `
insert into claimq.delayed (id, queue, kind, order_key, due_at, claim, topic, partition, "offset", record_topic, record_at)
select gen_random_uuid(), $1, 'failed', gen_random_uuid(), now(), gen_random_uuid(), $2, n % 7, n, 't', now() from generate_series(1, $3) n`, queue, topic, planRows)
	exec(filler, `insert into claimq.delayed_keys (queue, order_key, ready_at) select queue, order_key, due_at from claimq.delayed`)
	exec(filler, `
insert into claimq.dead_letters (id, queue, reason, cause, cause_version, order_key, claim, topic, partition, "offset", record_topic, record_at)
select gen_random_uuid(), $1, 'permanent', gen_random_uuid(), 1, gen_random_uuid(), gen_random_uuid(), $2, n % 7, n, 't', now() from generate_series(1, $3) n`, queue, topic, planRows)
	exec(filler, `
insert into claimq.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs)
select 0, gen_random_uuid(), $1, array[$2::int], '{0}', '{1}', array[n::bigint], '{-1}' from generate_series(1, $3) n`, queue, topic, planRows)
	for _, state := range []string{"filled", "analyzed"} {
		for name, call := range calls {
			text := explain(t, worker, call)
			if strings.Contains(text, "Seq Scan on") {
				t.Errorf("%s, %s: a table is read from end to end:\n%s", name, state, text)
			}
			// Three pages for each of 300 ids and 300 keys, in three tables, and some.
			if pages := pagesOf(t, text); pages > 6000 {
				t.Errorf("%s, %s: %d pages:\n%s", name, state, pages, text)
			}
		}
		for _, table := range []string{"delayed", "delayed_keys", "dead_letters", "positions"} {
			exec(filler, `analyze claimq.`+table)
		}
	}
}

func quoted(id uuid.UUID) string { return "'" + id.String() + "'" }

func uuids(ids []uuid.UUID) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	return "{" + strings.Join(texts, ",") + "}"
}

func explain(t *testing.T, conn *pgx.Conn, call string) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), "explain (analyze, buffers, costs off) "+call)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

var pagesHit = regexp.MustCompile(`shared (?:hit=(\d+))? ?(?:read=(\d+))?`)

// pagesOf is the pages that the plan's root has read.
func pagesOf(t *testing.T, text string) (pages int) {
	t.Helper()
	found := pagesHit.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no buffers in:\n%s", text)
	}
	for _, number := range found[1:] {
		if n, err := strconv.Atoi(number); err == nil {
			pages += n
		}
	}
	return pages
}
