package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// planNode is a node of EXPLAIN (format json).
type planNode struct {
	NodeType  string `json:"Node Type"`
	Relation  string `json:"Relation Name"`
	Index     string `json:"Index Name"`
	IndexCond string `json:"Index Cond"`
	TIDCond   string `json:"TID Cond"`
	Plans     []planNode
}

func (n planNode) each(do func(planNode)) {
	do(n)
	for _, child := range n.Plans {
		child.each(do)
	}
}

// planner prepares statements on an empty schema under a plan that is made once
// and kept, as a long-lived connection would.
type planner struct {
	s    *stage
	conn *pgx.Conn
}

func (s *stage) planner() *planner {
	p := &planner{s, s.db.Conn()}
	p.exec("set plan_cache_mode = force_generic_plan")
	return p
}

func (p *planner) exec(text string) {
	p.s.t.Helper()
	if _, err := p.conn.Exec(p.s.t.Context(), p.s.sql(text), pgx.QueryExecModeSimpleProtocol); err != nil {
		p.s.t.Fatalf("%s: %v", text, err)
	}
}

// plan explains the execution of a prepared statement, with the relay's settings
// when it has them.
func (p *planner) plan(ctx context.Context, name, args string, settings bool) planNode {
	p.s.t.Helper()
	tx, err := p.conn.Begin(ctx)
	if err != nil {
		p.s.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if settings {
		if err := local(ctx, tx); err != nil {
			p.s.t.Fatal(err)
		}
	}
	var text string
	explain := fmt.Sprintf("explain (format json) execute %s(%s)", name, args)
	if err := tx.QueryRow(ctx, explain, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		p.s.t.Fatalf("%s: %v", explain, err)
	}
	var plans []struct{ Plan planNode }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		p.s.t.Fatal(err)
	}
	return plans[0].Plan
}

// The plans of the statements that run all the time: made on empty tables, and
// looked at on the same connection after the tables have filled.
func TestHotStatementsStayOnTheirIndexWhenTablesFill(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		sql, args string
		settings  bool
		// wants maps each relation that may be read to what its scans must say.
		wants map[string]string
	}{
		"list": {sqlList, "'900:900:', '1000:1000:', 0, 0, 64, 1000", true, map[string]string{"outbox_0": "xid", "outbox_1": "xid", "outbox_2": "xid"}},
		"fetch": {
			sqlFetch, "'{\"(0,1)\"}', '{}', '{}'", true,
			map[string]string{"outbox_0": "ctid", "outbox_1": "ctid", "outbox_2": "ctid"},
		},
		"fetch with rows held": {
			sqlFetchHeld, "'{\"(0,1)\"}', '{}', '{}'", true,
			map[string]string{"outbox_0": "ctid", "outbox_1": "ctid", "outbox_2": "ctid", "outbox_held": "seq|key|topic"},
		},
		"heads":       {sqlHeads, "0, 64, 100", true, map[string]string{"outbox_held": "next_at"}},
		"topic heads": {sqlTopicHeads, "0, 64, null, 1", true, map[string]string{"outbox_held": "topic|outbox_held_topic"}},
		"followers":   {sqlFollowers, "'k', 't', 1, 10", true, map[string]string{"outbox_held": "key"}},
		"sent":        {sqlSent, "'{1,2}', '{1,2}'", true, map[string]string{"outbox_held": "seq"}},
		"promote":     {sqlPromote, "'{1,2}', '{1,2}'", true, map[string]string{"outbox_held": "seq"}},
		"refused": {
			sqlRefused, "'{1}', '{1}', '{row}', '{x}', '{1}', '{1 s}'", true,
			map[string]string{"outbox_held": "seq"},
		},
	}
	s := newStage(t, 1, "t")
	p := s.planner()
	names := map[string]string{}
	for name, test := range tests {
		names[name] = "hot_" + strings.ReplaceAll(name, " ", "_")
		p.exec("prepare " + names[name] + " as " + test.sql)
		p.plan(t.Context(), names[name], test.args, test.settings) // made while all is empty
	}
	s.exec(`insert into claimq.outbox (bucket, id, topic, key, value, slot)
	        select i % 64, gen_random_uuid(), 't', convert_to(i::text, 'UTF8'), '\x00', i % 3 from generate_series(1, 60000) i`)
	s.exec(`insert into claimq.outbox_held (seq, bucket, ordered, id, topic, key, value, header_keys, header_values, created_at, scope, reason)
	        select i, i % 64, true, gen_random_uuid(), 't' || i % 5, convert_to(i::text, 'UTF8'), '\x00', '{}', '{}', now(),
	               (array['row', 'topic', 'key'])[1 + i % 3]::claimq.held_scope, 'x'
	          from generate_series(1, 30000) i`)
	check := func(t *testing.T, when, name string) {
		t.Helper()
		test := tests[name]
		p.plan(t.Context(), names[name], test.args, test.settings).each(func(n planNode) {
			want, reads := test.wants[n.Relation]
			switch {
			case n.Relation == "":
			case !reads:
				t.Errorf("%s, %s: reads %s", name, when, n.Relation)
			case n.NodeType == "Seq Scan":
				t.Errorf("%s, %s: reads all of %s", name, when, n.Relation)
			case n.NodeType == "Bitmap Heap Scan", n.NodeType == "ModifyTable": // judged by the index scan below it
			default:
				said := n.IndexCond + n.TIDCond + n.Index
				for part := range strings.SplitSeq(want, "|") {
					if strings.Contains(said, part) {
						return
					}
				}
				t.Errorf("%s, %s: %s of %s by %q, want by %s", name, when, n.NodeType, n.Relation, said, want)
			}
		})
	}
	for name := range tests {
		check(t, "plan from empty tables", name)
	}
	s.exec("analyze claimq.outbox")
	s.exec("analyze claimq.outbox_held")
	for name := range tests {
		check(t, "plan from full tables", name)
	}
}

// What the relay asks for at every poll reads the newest row of its slice, not all
// rows of the ring.
func TestThePlaceIsReadFromTheIndex(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	p := s.planner()
	p.exec(`prepare place as select * from claimq.relay_windows w where w.slices = $1 and w.slice = $2 order by w.id desc limit 1`)
	p.plan(t.Context(), "place", "1, 0", true)
	s.exec(`insert into claimq.relay_windows (slot, slices, slice, token, instance, leased_until, incarnation, done)
	        select i % 3, 1, 0, gen_random_uuid(), 'x', now(), 'x', '3:3:' from generate_series(1, 30000) i`)
	p.plan(t.Context(), "place", "1, 0", true).each(func(n planNode) {
		if n.Relation != "" && !(strings.HasPrefix(n.NodeType, "Index") && strings.Contains(n.IndexCond, "slice")) {
			t.Errorf("%s of %s by %q", n.NodeType, n.Relation, n.IndexCond)
		}
		if n.NodeType == "Sort" {
			t.Error("the newest row is sorted for")
		}
	})
}
