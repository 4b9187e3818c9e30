package localpg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/localpg"
)

func startStandby(t *testing.T, primary *localpg.Server) *localpg.Server {
	t.Helper()
	standby, err := localpg.StartStandby(t.Context(), primary, localpg.Config{NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Errorf("stop standby: %v", err)
		}
	})
	return standby
}

func TestPromotedStandbyLacksWhatCameAfterDisconnect(t *testing.T) {
	t.Parallel()
	primary := start(t, localpg.Config{})
	exec1(t, primary, `create table t (n int)`)
	standby := startStandby(t, primary)
	exec1(t, primary, `insert into t values (1)`)
	if err := standby.WaitCaughtUp(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	if got := scan[int](t, standby.DSN(""), `select count(*) from t`); got != 1 {
		t.Fatalf("the standby shows %d rows, want 1", got)
	}
	if err := standby.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec1(t, primary, `insert into t values (2)`)
	if err := primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scan[int](t, standby.DSN(""), `select sum(n)::int from t`); got != 1 {
		t.Errorf("the new primary shows the sum %d: it has what was committed after it was cut off", got)
	}
	if got := scan[int](t, standby.DSN(""), `select timeline_id from pg_control_checkpoint()`); got < 1 {
		t.Errorf("timeline is %d", got)
	}
	exec1(t, standby, `insert into t values (3)`)
	conn, err := pgx.Connect(t.Context(), localpg.JoinDSN("", primary, standby))
	if err != nil {
		t.Fatalf("connect to whichever takes writes: %v", err)
	}
	defer conn.Close(context.Background())
	if got := int(conn.Config().Port); got != standby.Port && conn.PgConn().ParameterStatus("in_hot_standby") != "off" {
		t.Errorf("connected to port %d", got)
	}
}

func TestReconnectedStandbyCatchesUp(t *testing.T) {
	t.Parallel()
	primary := start(t, localpg.Config{})
	standby := startStandby(t, primary)
	if err := standby.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec1(t, primary, `create table t as select 7 as n`)
	if scan[bool](t, standby.DSN(""), `select to_regclass('t') is not null`) {
		t.Error("a standby that is cut off shows a new table")
	}
	if err := standby.Reconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.WaitCaughtUp(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	if got := scan[int](t, standby.DSN(""), `select n from t`); got != 7 {
		t.Errorf("row is %d", got)
	}
	if err := standby.PauseReplay(t.Context()); err != nil {
		t.Fatal(err)
	}
	if state := scan[string](t, standby.DSN(""), `select pg_get_wal_replay_pause_state()`); state == "not paused" {
		t.Errorf("replay is %s", state)
	}
	if err := standby.ResumeReplay(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestSynchronousStandbyHoldsUpCommitsWhileCutOff(t *testing.T) {
	t.Parallel()
	primary := start(t, localpg.Config{Settings: map[string]string{"synchronous_commit": "on"}})
	exec1(t, primary, `create table t (n int)`)
	standby := startStandby(t, primary)
	if err := standby.WaitCaughtUp(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	exec1(t, primary, `alter system set synchronous_standby_names = 'claimq_standby'`)
	exec1(t, primary, `select pg_reload_conf()`)
	eventually(t, "the standby counts as synchronous", func() bool {
		return scan[int](t, primary.DSN(""), `select count(*) from pg_stat_replication where sync_state = 'sync'`) == 1
	})
	exec1(t, primary, `insert into t values (1)`)
	if err := standby.Freeze(); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), primary.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), `insert into t values (2)`)
		done <- err
	}()
	eventually(t, "the commit waits for the frozen standby", func() bool {
		return scan[int](t, primary.DSN(""), `select count(*) from pg_stat_activity where wait_event = 'SyncRep'`) == 1
	})
	if err := standby.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the commit that waited: %v", err)
	}
}
