package localbouncer_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/claimq/claimq/internal/localbouncer"
	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/localproc"
	"github.com/claimq/claimq/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, config localbouncer.Config) *localbouncer.Server {
	t.Helper()
	bouncer, err := localbouncer.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(bouncer.LogTail(20))
		}
		if err := bouncer.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return bouncer
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn+"&default_query_exec_mode=cache_describe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func serverPort(ctx context.Context, conn *pgx.Conn) (port int, err error) {
	err = conn.QueryRow(ctx, `select inet_server_port()`).Scan(&port)
	return port, err
}

func TestTransactionModeSharesOneSessionAmongClients(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, localpg.Config{Password: "it's a secret"})
	bouncer := start(t, localbouncer.Config{DSN: server.DSN(""), PoolSize: 1})
	first, second := connect(t, bouncer.DSN()), connect(t, bouncer.DSN())
	pids := make([]int, 2)
	for i, conn := range []*pgx.Conn{first, second} {
		if err := conn.QueryRow(t.Context(), `select pg_backend_pid()`).Scan(&pids[i]); err != nil {
			t.Fatal(err)
		}
	}
	if pids[0] != pids[1] {
		t.Errorf("two clients had the backends %v: this is not transaction mode with one connection", pids)
	}
	tx, err := first.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select 1`); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := second.Exec(short, `select 1`); err == nil {
		t.Error("a second client worked while the only connection was in a transaction")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRepointedBouncerLeadsToTheOtherServer(t *testing.T) {
	t.Parallel()
	before, after := pgtest.Server(t, localpg.Config{}), pgtest.Server(t, localpg.Config{})
	bouncer := start(t, localbouncer.Config{DSN: before.DSN("")})
	conn := connect(t, bouncer.DSN())
	if port, err := serverPort(t.Context(), conn); err != nil || port != before.Port {
		t.Fatalf("at first it leads to port %d (%v), want %d", port, err, before.Port)
	}
	if err := before.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := bouncer.Repoint(t.Context(), after.DSN("")); err != nil {
		t.Fatal(err)
	}
	// The connection that was in the pool may be found broken once.
	deadline := time.Now().Add(10 * time.Second)
	for {
		fresh, err := pgx.Connect(t.Context(), bouncer.DSN()+"&default_query_exec_mode=cache_describe")
		if err == nil {
			port, queryErr := serverPort(t.Context(), fresh)
			_ = fresh.Close(t.Context())
			if queryErr == nil && port == after.Port {
				return
			}
			err = queryErr
		}
		if time.Now().After(deadline) {
			t.Fatalf("after ten seconds it does not lead to the new server: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestAdminConsoleAnswersAndRefusesNonsense(t *testing.T) {
	t.Parallel()
	bouncer := start(t, localbouncer.Config{DSN: pgtest.DSN(t)})
	if err := bouncer.Admin(t.Context(), "RECONNECT"); err != nil {
		t.Error(err)
	}
	if err := bouncer.Admin(t.Context(), "NONSENSE"); err == nil {
		t.Error("the console took a command that does not exist")
	}
}

func TestStopLeavesNoProcessAndNoFile(t *testing.T) {
	t.Parallel()
	bouncer := start(t, localbouncer.Config{DSN: pgtest.DSN(t)})
	pid := bouncer.PID()
	if err := bouncer.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if localproc.Alive(pid) {
		t.Error("the process runs after Stop")
	}
	if _, err := os.Stat(bouncer.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is there after Stop (%v)", err)
	}
	if err := bouncer.Stop(t.Context()); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestStartThatFailsSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	_, err := localbouncer.Start(t.Context(), localbouncer.Config{DSN: pgtest.DSN(t), Settings: map[string]string{"pool_mode": "sideways"}})
	if err == nil || !strings.Contains(err.Error(), "sideways") {
		t.Errorf("the error does not show what was wrong: %v", err)
	}
	if _, err := localbouncer.Start(t.Context(), localbouncer.Config{DSN: "postgres://host:notaport/"}); err == nil || !strings.Contains(err.Error(), "DSN") {
		t.Errorf("the error does not name the DSN: %v", err)
	}
}

func TestMissingBinaryIsToldWithThePackage(t *testing.T) {
	t.Setenv(localbouncer.BinaryVariable, "/does/not/exist")
	_, err := localbouncer.Start(t.Context(), localbouncer.Config{DSN: "postgres://127.0.0.1/"})
	if !errors.Is(err, localbouncer.ErrNoBinary) || !strings.Contains(err.Error(), "apt-get install pgbouncer") {
		t.Errorf("without a binary: %v", err)
	}
}
