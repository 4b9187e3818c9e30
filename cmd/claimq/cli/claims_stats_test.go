package cli

import (
	"testing"
	"time"
)

func TestClaimsStatsTellsSegmentsTheNextRollAndHowFarBackQueuesRemember(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	dbExec(t, db, `insert into claimq.queues (name, group_name, rule, config) values ('plain', 'plain', 'r', '{"claims": "none"}')`)
	wantAll(t, env.mustRun("claims", "stats"), "current", "empty", "16.0 KiB", "half a retention after the first claim", "orders  8d", "plain   8d         claims nothing")

	env.mustRun("claims", "import", "--queue", "orders", writeFile(t, "done.txt", "o-1\no-2\n"))
	wantAll(t, env.mustRun("claims", "stats"), "The next roll comes at ", ", in ")

	// As a roll leaves it: the first segment is closed, and looked into beside the second.
	dbExec(t, db, `insert into claimq.claim_phases (phase, inserts, lookups) values (1, '{1}', '{0}')`)
	dbExec(t, db, `update claimq.claim_segments set opened = '2026-01-01 12:00Z', closed = now() where segment = 0`)
	dbExec(t, db, `update claimq.claim_segments set opened = now(), current_since = now() - interval '5 days' where segment = 1`)
	dbExec(t, db, `insert into claimq.claim_segment_clocks select 0, id, 2, '2026-01-02 12:00Z', '2026-01-03 12:00Z' from claimq.queues where name = 'orders'`)
	dbExec(t, db, `insert into claimq.claims_1 select (c).* from (select jsonb_populate_record(c, '{"segment": 1}') as c from claimq.claims_0 c) c`)
	text := env.mustRun("claims", "stats")
	wantAll(t, text, "older", "2026-01-01 12:00:00 UTC  2026-01-11 12:00:00 UTC", "has been due since ")

	stats := decodeJSON[claimsStats](t, env.mustRun("claims", "stats", "--json"))
	if stats.Phase != 1 || len(stats.Segments) != 4 || stats.Segments[0].Rows != 2 || stats.Segments[1].Role != "current" {
		t.Errorf("claims stats --json is %+v", stats)
	}
	if len(stats.Queues) != 2 || stats.Queues[0].RemembersSince == nil || stats.Queues[1].RemembersSince != nil {
		t.Errorf("the queues are %+v", stats.Queues)
	}
}

func TestSizesForPeople(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 20: "5.0 MiB", 3 << 30: "3.0 GiB", 2 << 50: "2048.0 TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	if got := optionalTime(nil); got != "" {
		t.Errorf("no time is %q", got)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if got := optionalTime(&at); got != "2026-01-02 03:04:05 UTC" {
		t.Errorf("%q", got)
	}
}
