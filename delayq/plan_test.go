package delayq_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/delayq"
)

const (
	manyItems = 200_000
	readyKeys = 100
)

// Every statement has a generic plan, made on empty, vacuumed tables and kept while
// they fill, which is the worst that a long-lived connection can have, and runs
// behind protectPlans. With 200,000 items due next month, 200,000 blocked behind one head that is not due,
// and 100 keys ready, each reads some entries for each key that it is about,
// and nothing of the rest.
func TestPlansMadeOnEmptyTablesHoldWhenTheyFill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newPlans(w)
	p.prepare()
	p.fill()
	p.check("tables that have filled")
	w.exec(`analyze claimq.delayed`)
	w.exec(`analyze claimq.delayed_keys`)
	p.check("the same, analyzed")
}

// plans is a connection that keeps its plans.
type plans struct {
	w           *world
	conn        *pgx.Conn
	keys        []uuid.UUID
	tokens      []uuid.UUID
	items       []uuid.UUID
	itemsTokens []uuid.UUID
}

func newPlans(w *world) *plans {
	p := &plans{w: w, conn: w.db.Conn()}
	for i := range readyKeys {
		p.keys = append(p.keys, key(fmt.Sprintf("ready %d", i)))
		p.tokens = append(p.tokens, uuid.New())
		p.items = append(p.items, uuid.New())
	}
	p.itemsTokens = p.tokens
	return p
}

func (p *plans) exec(text string, args ...any) {
	p.w.Helper()
	if _, err := p.conn.Exec(p.w.ctx(), p.w.sql(text), args...); err != nil {
		p.w.Fatalf("%.200s: %v", text, err)
	}
}

func (p *plans) prepare() {
	p.exec(`vacuum claimq.delayed`)
	p.exec(`vacuum claimq.delayed_keys`)
	p.exec(`set plan_cache_mode = force_generic_plan`)
	for name, text := range delayq.Statements {
		p.exec(`prepare ` + name + ` as ` + text)
	}
	// The first execution makes the plan; statements that refuse what is not there
	// are planned by EXPLAIN.
	for name := range delayq.Statements {
		p.explain("explain", name)
	}
}

// fill works on another connection: what it sets would make this one forget its
// plans.
func (p *plans) fill() {
	p = &plans{w: p.w, conn: p.w.db.Conn(), keys: p.keys, tokens: p.tokens, items: p.items, itemsTokens: p.itemsTokens}
	record := `'orders', '\x00', '{}', '{}', now()`
	columns := `(id, queue, kind, order_key, due_at, starts, lease_token, record_topic, record_value, header_keys, header_values, record_at)`
	p.exec(`set session_replication_role = 'replica'`) // no foreign keys to check, for speed
	p.exec(`insert into claimq.delayed `+columns+`
	        select u.id, $1, 'failed', u.id, now() + interval '30 days', 0, null, `+record+`
	          from (select gen_random_uuid() as id from generate_series(1, $2)) u`, p.w.queue, manyItems)
	p.exec(`insert into claimq.delayed `+columns+`
	        select gen_random_uuid(), $1, 'blocked', $2, now() + case n when 1 then interval '1 hour' else interval '0' end, 0, null, `+record+`
	          from generate_series(1, $3) n`, p.w.queue, key("hot"), manyItems)
	p.exec(`insert into claimq.delayed `+columns+`
	        select u.id, $1, 'failed', u.k, now() - interval '1 hour', 1, u.token, `+record+`
	          from unnest($2::uuid[], $3::uuid[], $4::uuid[]) u (id, k, token)`, p.w.queue, p.items, p.keys, p.itemsTokens)
	p.exec(`insert into claimq.delayed_keys (queue, order_key, ready_at)
	        select distinct on (queue, order_key) queue, order_key, due_at from claimq.delayed order by queue, order_key, order_pos`)
	p.exec(`update claimq.delayed_keys k set lease_token = u.token from unnest($2::uuid[], $3::uuid[]) u (k, token)
	         where k.queue = $1 and k.order_key = u.k`, p.w.queue, p.keys, p.tokens)
}

// check asserts how many entries of tables and indexes each statement reads, the
// ones inside functions included.
func (p *plans) check(when string) {
	p.w.Helper()
	for _, name := range sortedNames() {
		p.exec("begin")
		p.exec(delayq.ProtectPlans)
		before := p.entriesRead()
		p.exec("execute " + name + p.arguments(name))
		entries := p.entriesRead() - before
		p.exec("rollback")
		p.w.Logf("%s: %s: %d entries", when, name, entries)
		if limit := 20 * (readyKeys + 2); entries > limit {
			p.w.Errorf("%s: %s read %d entries, more than %d:\n%s", when, name, entries, limit, p.explain("explain", name))
		}
	}
}

// entriesRead is what the session has read of the schema and not reported yet.
func (p *plans) entriesRead() (entries int) {
	p.w.Helper()
	p.w.must(p.conn.QueryRow(p.w.ctx(), `
		select sum(pg_stat_get_xact_tuples_returned(c.oid))::int from pg_class c
		 where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'i')`, p.w.db.Schema).Scan(&entries))
	return entries
}

func sortedNames() []string {
	var names []string
	for name := range delayq.Statements {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// explain runs a prepared statement in a transaction that is rolled back.
func (p *plans) explain(how, name string) string {
	p.w.Helper()
	p.exec("begin")
	defer p.exec("rollback")
	p.exec(delayq.ProtectPlans)
	rows, err := p.conn.Query(p.w.ctx(), how+" execute "+name+p.arguments(name))
	if err != nil {
		p.w.Fatalf("%s: %v", name, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.w.Fatalf("%s: %v", name, err)
	}
	return strings.Join(lines, "\n")
}

// arguments are literals, because EXECUTE takes no parameters of its own.
func (p *plans) arguments(name string) string {
	queue := fmt.Sprint(p.w.queue)
	keys, tokens := literal(p.keys, "uuid"), literal(p.tokens, "uuid")
	items := literal(p.items, "uuid")
	texts := literal(slices.Repeat([]string{"x"}, readyKeys), "text")
	seconds := literal(slices.Repeat([]string{"1 s"}, readyKeys), "interval")
	queues := literal(slices.Repeat([]int32{p.w.queue}, readyKeys), "int")
	list := map[string][]string{
		"lockReady":     {queue, "100", "interval '45 s'"},
		"joinScheduled": {queue, literal(append([]uuid.UUID{key("hot")}, p.keys...), "uuid")},
		"handOut":       {queue, keys, tokens, "5", "16777216"},
		"dropIdle":      {queue, keys, tokens},
		"assertLeases":  {queue, keys, tokens},
		"finish":        {items, tokens},
		"retry":         {items, tokens, seconds, texts, texts},
		"giveBack":      {items, tokens},
		"interrupt":     {items, tokens, texts},
		"settle":        {queue, keys, tokens},
		"keepKeys":      {queue, literal(append([]uuid.UUID{key("hot"), key("new")}, p.keys...), "uuid")},
		"renew":         {queues, keys, tokens, "interval '45 s'"},
		"nextDue":       {queue},
	}[name]
	if list == nil {
		p.w.Fatalf("the test has no arguments for %s", name)
	}
	return "(" + strings.Join(list, ", ") + ")"
}

func literal[T any](values []T, of string) string {
	var list []string
	for _, v := range values {
		list = append(list, fmt.Sprintf(`"%v"`, v))
	}
	return "'{" + strings.Join(list, ",") + "}'::" + of + "[]"
}
