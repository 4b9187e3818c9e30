package localpg_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/localproc"
)

func TestStopLeavesNoProcessAndNoFile(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{})
	pid := server.PID()
	if got := scan[string](t, server.DSN(""), `select current_database()`); got != localpg.DefaultDatabase {
		t.Errorf("database is %q, want %q", got, localpg.DefaultDatabase)
	}
	if got := scan[string](t, server.DSN(""), `show fsync`); got != "off" {
		t.Errorf("fsync is %s for a server without fsync", got)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if localproc.Alive(pid) {
		t.Errorf("process %d runs after Stop", pid)
	}
	if exists(server.Dir) {
		t.Errorf("%s is there after Stop", server.Dir)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestZeroConfigIsDurableAndSettingsWin(t *testing.T) {
	t.Parallel()
	server, err := localpg.Start(t.Context(), localpg.Config{
		Database: `odd "name`,
		Settings: map[string]string{"max_connections": "23", "work_mem": "7MB", "cluster_name": "it's"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "max_connections": "23", "work_mem": "7MB", "cluster_name": "it's",
	} {
		if got := scan[string](t, server.DSN("postgres"), `show `+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	if got := scan[string](t, server.DSN(""), `select current_database()`); got != `odd "name` {
		t.Errorf("database is %q", got)
	}
}

func TestRestartKeepsPortAndData(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{})
	exec1(t, server, `create table kept (n int)`)
	exec1(t, server, `insert into kept values (42)`)
	port, pid := server.Port, server.PID()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if server.Port != port || server.PID() == pid {
		t.Errorf("after a restart: port %d (was %d), process %d (was %d)", server.Port, port, server.PID(), pid)
	}
	if got := scan[int](t, server.DSN(""), `select n from kept`); got != 42 {
		t.Errorf("row is %d after a restart", got)
	}
}

func TestKilledServerComesBackWithItsCommits(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{})
	exec1(t, server, `create table kept (n int)`)
	exec1(t, server, `set synchronous_commit = on; insert into kept values (42)`)
	conn, err := pgx.Connect(t.Context(), server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if server.Running() {
		t.Error("server runs after Kill")
	}
	if _, err := conn.Exec(t.Context(), `select 1`); err == nil {
		t.Error("a connection outlived the killed server")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scan[int](t, server.DSN(""), `select n from kept`); got != 42 {
		t.Errorf("row is %d after the crash", got)
	}
}

func TestKilledServerLeavesNoSharedMemoryAfterStop(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{})
	text, err := os.ReadFile(filepath.Join(server.DataDir(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	segment := strings.Fields(strings.Split(string(text), "\n")[6])[1]
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !segmentExists(t, segment) {
		t.Fatalf("segment %s is not there after a kill, so this test proves nothing", segment)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if segmentExists(t, segment) {
		t.Errorf("shared memory segment %s is there after Stop", segment)
	}
}

func segmentExists(t *testing.T, id string) bool {
	t.Helper()
	output, err := exec.Command("ipcs", "-m").Output()
	if err != nil {
		t.Fatalf("ipcs (package util-linux): %v", err)
	}
	for line := range strings.Lines(string(output)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == id {
			return true
		}
	}
	return false
}

func TestFrozenServerAnswersOnlyAfterThaw(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{})
	conn, err := pgx.Connect(t.Context(), server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- conn.Ping(context.Background()) }()
	select {
	case err := <-answered:
		t.Fatalf("a frozen server answered (%v)", err)
	case <-time.After(300 * time.Millisecond):
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if fresh, err := pgx.Connect(short, server.DSN("")); err == nil {
		_ = fresh.Close(t.Context())
		t.Error("a frozen server took a new connection")
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("after the thaw: %v", err)
	}
}

func TestFrozenServerCanBeStopped(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{})
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if server.Running() || exists(server.Dir) {
		t.Error("a frozen server was not stopped and removed")
	}
}

func TestStopPastItsDeadlineKillsAndSaysSo(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Stop(over); !errors.Is(err, localproc.ErrKilled) {
		t.Errorf("Stop past its deadline returned %v, want ErrKilled", err)
	}
	if server.Running() || exists(server.Dir) {
		t.Error("process or files are left")
	}
}

func TestPasswordIsAskedFor(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{Password: "p@ss/wörd'"})
	if got := scan[string](t, server.DSN(""), `select current_user`); got != localpg.Superuser {
		t.Errorf("connected as %q", got)
	}
	_, err := pgx.Connect(t.Context(), strings.Replace(server.DSN(""), "p%40ss", "wrong", 1))
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "28P01" {
		t.Errorf("a wrong password got %v, want SQLSTATE 28P01", err)
	}
}

func TestTLSIsVerifiable(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{TLS: true})
	dsn := strings.Replace(server.DSN(""), "sslmode=disable", "sslmode=verify-full&sslrootcert="+server.CAFile, 1)
	if !scan[bool](t, dsn, `select ssl from pg_stat_ssl where pid = pg_backend_pid()`) {
		t.Error("the connection is not encrypted")
	}
}

func TestStatementStatisticsAreThereWhenInstalled(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Config{})
	loaded := scan[string](t, server.DSN(""), `show shared_preload_libraries`)
	installed := scan[bool](t, server.DSN(""), `select exists (select from pg_available_extensions where name = 'pg_stat_statements')`)
	if installed != (loaded == "pg_stat_statements") {
		t.Errorf("pg_stat_statements installed: %v, loaded: %q", installed, loaded)
	}
}

func TestNamedDirIsKeptAndUsedAgain(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "cq-kept-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	first := start(t, localpg.Config{Dir: dir})
	exec1(t, first, `create table kept as select 42 as n`)
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := start(t, localpg.Config{Dir: dir, Settings: map[string]string{"work_mem": "9MB"}})
	if got := scan[int](t, second.DSN(""), `select n from kept`); got != 42 {
		t.Errorf("row is %d after a second start", got)
	}
	if got := scan[string](t, second.DSN(""), `show work_mem`); got != "9MB" {
		t.Errorf("work_mem of the second start is %s", got)
	}
}

func TestDetachedServerRunsUntilStopDir(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "cq-detached-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := localpg.Start(t.Context(), localpg.Config{Dir: dir, NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Detach(); err != nil {
		t.Fatal(err)
	}
	if got := localpg.DirPID(dir); got != server.PID() {
		t.Errorf("DirPID is %d, want %d", got, server.PID())
	}
	if err := localpg.StopDir(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the detached server ends", func() bool { return !server.Running() })
	if got := localpg.DirPID(dir); got != 0 {
		t.Errorf("DirPID is %d after StopDir", got)
	}
	if err := localpg.StopDir(t.Context(), dir); err != nil {
		t.Errorf("a second StopDir: %v", err)
	}
}

func TestKilledParentLeavesNoServerAndNoFile(t *testing.T) {
	t.Parallel()
	for name, frozen := range map[string]bool{"running": false, "frozen": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := childCommand(t, copyOfTestBinary(t), nil)
			input, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer input.Close()
			pid, dir, _, _ := startChild(t, cmd)
			if frozen {
				if err := exec.Command("kill", "-STOP", strconv.Itoa(pid)).Run(); err != nil {
					t.Fatal(err)
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			eventually(t, "the server of a killed parent ends", func() bool { return !localproc.Alive(pid) })
			eventually(t, "the directory of a killed parent's server is removed", func() bool { return !exists(dir) })
		})
	}
}

func TestRunsUnderAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		server := start(t, localpg.Config{})
		account, err := localproc.ServiceAccount()
		if err != nil {
			t.Fatal(err)
		}
		if got := ownerOf(t, server.PID()); got != account.UID {
			t.Errorf("as root, the server runs as user %d, want %d (%s)", got, account.UID, account.Name)
		}
	}
	// Not as root: the server runs as the user itself, which is nobody when
	// the tests run as root.
	cmd := childCommand(t, copyOfTestBinary(t), nobodyWhenRoot(t))
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pid, dir, dsn, uid := startChild(t, cmd)
	if uid == 0 {
		t.Error("the child runs as root")
	}
	if got := ownerOf(t, pid); int(got) != uid {
		t.Errorf("the server runs as user %d and its parent as %d", got, uid)
	}
	if got := scan[int](t, dsn, `select 1`); got != 1 {
		t.Errorf("select 1 is %d", got)
	}
	if err := input.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the child: %v", err)
	}
	if localproc.Alive(pid) || exists(dir) {
		t.Error("process or files are left")
	}
}

// startChild starts a child of runChild and reads what it tells.
func startChild(t *testing.T, cmd *exec.Cmd) (pid int, dir, dsn string, uid int) {
	t.Helper()
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var lines []string
	for scanner := bufio.NewScanner(output); len(lines) < 4 && scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	if len(lines) < 4 {
		t.Fatalf("the child ended early, after %q", lines)
	}
	pid, errPID := strconv.Atoi(lines[0])
	uid, errUID := strconv.Atoi(lines[3])
	if err := errors.Join(errPID, errUID); err != nil {
		t.Fatal(err)
	}
	return pid, lines[1], lines[2], uid
}

func nobodyWhenRoot(t *testing.T) *localproc.Account {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	found, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, errUID := strconv.Atoi(found.Uid)
	gid, errGID := strconv.Atoi(found.Gid)
	if err := errors.Join(errUID, errGID); err != nil {
		t.Fatal(err)
	}
	return &localproc.Account{Name: "nobody", UID: uint32(uid), GID: uint32(gid)}
}

func ownerOf(t *testing.T, pid int) uint32 {
	t.Helper()
	output, err := exec.Command("ps", "-o", "uid=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		t.Fatalf("ps (package procps): %v", err)
	}
	uid, err := strconv.Atoi(strings.TrimSpace(string(output)))
	if err != nil {
		t.Fatal(err)
	}
	return uint32(uid)
}
