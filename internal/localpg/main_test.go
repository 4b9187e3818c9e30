package localpg_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/localproc"
)

// childVariable makes the test binary run one of the child bodies below instead
// of the tests: a parent that can be killed, or one under another user.
const childVariable = "CLAIMQ_LOCALPG_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		runChild()
		return
	}
	goleak.VerifyTestMain(m)
}

// runChild starts a server, tells the parent where it is, and stops it when
// its input ends.
func runChild() {
	ctx := context.Background()
	server, err := localpg.Start(ctx, localpg.Config{NoFsync: true})
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	if _, err := os.Stdout.WriteString(strings.Join([]string{strconv.Itoa(server.PID()), server.Dir, server.DSN(""), strconv.Itoa(os.Geteuid())}, "\n") + "\n"); err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	if err := server.Stop(ctx); err != nil {
		println(err.Error())
		os.Exit(1)
	}
}

// copyOfTestBinary puts this test's binary where any user can run it.
func copyOfTestBinary(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cq-child-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "child")
	if err := os.WriteFile(name, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func childCommand(t *testing.T, binary string, account *localproc.Account) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	if account != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: account.UID, Gid: account.GID}}
	}
	return cmd
}

// start starts a server without fsync that is stopped at the end.
func start(t *testing.T, config localpg.Config) *localpg.Server {
	t.Helper()
	config.NoFsync = true
	server, err := localpg.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return server
}

func exec1(t *testing.T, server *localpg.Server, statement string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func scan[T any](t *testing.T, dsn, query string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var value T
	if err := conn.QueryRow(t.Context(), query).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// eventually polls a condition for up to ten seconds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within ten seconds: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
