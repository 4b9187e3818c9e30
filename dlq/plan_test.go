package dlq_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/claimq/claimq/dlq"
)

// The statements that stand in a batch's last flight have generic plans, made on
// an empty, vacuumed table and kept while it fills. Behind protectPlans each reads
// some entries for each letter that it is about, and nothing of 200,000 others.
func TestPlansMadeOnAnEmptyTableHoldWhenItFills(t *testing.T) {
	t.Parallel()
	const others, batch = 200_000, 100
	w := newWorld(t)
	conn := w.db.Conn()
	exec := func(text string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(w.ctx(), w.sql(text), args...); err != nil {
			t.Fatalf("%.200s: %v", text, err)
		}
	}
	// Filling works on another connection: what it sets would make the first one
	// forget its plans.
	filling := w.db.Conn()
	fill := func(text string, args ...any) {
		t.Helper()
		if _, err := filling.Exec(w.ctx(), w.sql(text), args...); err != nil {
			t.Fatalf("%.200s: %v", text, err)
		}
	}
	entriesRead := func() (entries int) {
		t.Helper()
		w.must(conn.QueryRow(w.ctx(), `
			select sum(pg_stat_get_xact_tuples_returned(c.oid))::int from pg_class c
			 where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'i')`, w.db.Schema).Scan(&entries))
		return entries
	}

	var ids, keys, offsets []string
	for i := range batch {
		ids, keys, offsets = append(ids, uuid.NewString()), append(keys, uuid.NewString()), append(offsets, fmt.Sprint(others+i))
	}
	literal := func(values []string, of string) string { return `'{"` + strings.Join(values, `","`) + `"}'::` + of }
	same := func(value, of string) string { return literal(slices.Repeat([]string{value}, batch), of) }
	queue, topic := fmt.Sprint(w.queue), fmt.Sprint(w.topic)
	arguments := map[string]string{
		"again": strings.Join([]string{
			literal(ids, "uuid[]"), same(queue, "int[]"), same(topic, "int[]"), same("0", "int[]"), literal(offsets, "bigint[]"),
			same("2", "int[]"), same("r", "text[]"), same("c", "text[]"), same("m", "text[]"), same("s", "text[]"),
			literal(ids, "uuid[]"), same("1", "smallint[]"), same("1", "int[]"), same("1", "int[]"), same("0", "int[]"), same("0", "int[]"),
			same("", "text[]"), same("false", "boolean[]"), same("1", "int[]"),
		}, ", "),
		"resolve": literal(ids, "uuid[]"),
		"hold":    queue + ", " + literal(keys, "uuid[]"),
	}

	exec(`vacuum claimq.dead_letters`)
	exec(`set plan_cache_mode = force_generic_plan`)
	for name, text := range dlq.Statements {
		exec(`prepare ` + name + ` as ` + text)
		exec(`explain execute ` + name + ` (` + arguments[name] + `)`)
	}
	fill(`set session_replication_role = 'replica'`) // no foreign keys to check, for speed
	columns := `(id, queue, state, reason, cause, cause_version, order_key, holds_key, claim, topic, partition, "offset", record_topic, record_at)`
	fill(`insert into claimq.dead_letters `+columns+`
	      select gen_random_uuid(), $1, 'dead', 'r', gen_random_uuid(), 1, gen_random_uuid(), true, gen_random_uuid(), $2, 0, n, 'orders', now()
	        from generate_series(0, $3 - 1) n`, w.queue, w.topic, others)
	fill(`insert into claimq.dead_letters `+columns+`
	      select u.id, $1, 'replaying', 'r', u.id, 1, u.k, true, u.id, $2, 0, u.o, 'orders', now()
	        from unnest($3::uuid[], $4::uuid[], $5::bigint[]) u (id, k, o)`, w.queue, w.topic, ids, keys, offsetsOf(others, batch))

	for _, analyzed := range []bool{false, true} {
		if analyzed {
			exec(`analyze claimq.dead_letters`)
		}
		for name := range dlq.Statements {
			exec("begin")
			exec(dlq.ProtectPlans)
			before := entriesRead()
			exec("execute " + name + " (" + arguments[name] + ")")
			entries := entriesRead() - before
			exec("rollback")
			t.Logf("analyzed %v: %s: %d entries", analyzed, name, entries)
			if limit := 20 * batch; entries > limit {
				t.Errorf("analyzed %v: %s read %d entries for %d letters", analyzed, name, entries, batch)
			}
		}
	}
}

func offsetsOf(first, n int) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = int64(first + i)
	}
	return list
}
