package e2e

import (
	"strings"
	"testing"

	"github.com/claimq/claimq/internal/pgtest"
)

// Ten workers start at the same time on a database that has nothing, each told to
// migrate: one of them does, and all of them work.
func TestTenWorkersStartAtOnceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	s := newShop(t, 10) // for the business table; claimq's own schema is another
	empty := pgtest.NewEmpty(t, s.db.DSN)
	config := s.ordersConfig("concurrency: 1")
	config = strings.Replace(config, "schema: "+s.db.Schema, "schema: "+empty.Schema+"\n  max_connections: 4", 1)
	s.kcat(nil, `k|{"order_id":"o-1"}`)
	runs := make([]*process, 10)
	for i := range runs {
		runs[i] = claimq(t, config, "run", "--migrate")
	}
	eventually(t, "ten workers", func() bool {
		return number(t, s.db.Pool, `select count(*) from `+empty.Schema+`.workers`) == len(runs)
	})
	eventually(t, "the order", func() bool { return s.ask(`select count(*) from SCHEMA.orders`) == 1 })
	migrated := 0
	for _, run := range runs {
		run.stop()
		if run.said("msg=migrated") {
			migrated++
		}
		if run.said("level=ERROR") || run.said("level=WARN") {
			t.Errorf("a worker had trouble:\n%s", run.output())
		}
	}
	if migrated != 1 {
		t.Errorf("%d workers say that they have migrated, want 1", migrated)
	}
}
