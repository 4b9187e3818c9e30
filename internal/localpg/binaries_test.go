package localpg

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// fakeBinaries makes a directory that looks like the binaries of a version.
func fakeBinaries(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNamedBinariesWinAndAreChecked(t *testing.T) {
	newer := fakeBinaries(t, "99.1 (Debian 99.1-1)")
	t.Setenv(BinDirVariable, newer)
	if dir, err := FindBinaries(); err != nil || dir != newer {
		t.Errorf("found %s (%v), want %s", dir, err, newer)
	}
	t.Setenv(BinDirVariable, fakeBinaries(t, "14.9"))
	if _, err := FindBinaries(); !errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), "14") {
		t.Errorf("too old binaries: %v", err)
	}
	t.Setenv(BinDirVariable, t.TempDir())
	if _, err := FindBinaries(); !errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), BinDirVariable) {
		t.Errorf("a directory without binaries: %v", err)
	}
}

func TestNewestBinariesAreChosen(t *testing.T) {
	newest := fakeBinaries(t, "99.1")
	t.Setenv(BinDirVariable, "")
	t.Setenv("PATH", newest+string(os.PathListSeparator)+os.Getenv("PATH"))
	dir, err := FindBinaries()
	if err != nil {
		t.Fatal(err)
	}
	if resolved, err := filepath.EvalSymlinks(newest); err != nil || dir != newest && dir != resolved {
		t.Errorf("found %s (%v), want %s", dir, err, newest)
	}
}

func TestStartWithoutBinariesSaysWhatToInstall(t *testing.T) {
	t.Setenv(BinDirVariable, t.TempDir())
	if _, err := Start(t.Context(), Config{}); !errors.Is(err, ErrNoBinaries) {
		t.Errorf("Start got %v, want ErrNoBinaries", err)
	}
	if _, err := Start(t.Context(), Config{BinDir: "/does/not/exist"}); err == nil || !strings.Contains(err.Error(), "BinDir") {
		t.Errorf("the error does not name BinDir: %v", err)
	}
}

func TestStandbyWithoutBaseBackupSaysSo(t *testing.T) {
	t.Parallel()
	primary := &Server{BinDir: fakeBinaries(t, "17.1")}
	if _, err := StartStandby(t.Context(), primary, Config{}); err == nil || !strings.Contains(err.Error(), "pg_basebackup") {
		t.Errorf("the error does not name pg_basebackup: %v", err)
	}
}

func TestTooLongDirIsRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if _, err := Start(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s was made", dir)
	}
}

func TestServerThatCannotStartShowsItsLogAndLeavesNothing(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Config{NoFsync: true, Settings: map[string]string{"max_connections": "many"}})
	if err == nil || !strings.Contains(err.Error(), "max_connections") {
		t.Errorf("the error does not show the log: %v", err)
	}
}

// TestDownloadedBinariesRun downloads about 10 MB, once per machine: the
// download is what a first user of the demo depends on.
func TestDownloadedBinariesRun(t *testing.T) {
	t.Parallel()
	told := ""
	binDir, err := download(t.Context(), func(format string, _ ...any) { told += format })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("told: %q", told)
	if again, err := download(t.Context(), func(string, ...any) { t.Error("a second download was begun") }); err != nil || again != binDir {
		t.Errorf("a second time: %s (%v)", again, err)
	}
	server, err := Start(t.Context(), Config{NoFsync: true, BinDir: binDir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	conn, err := pgx.Connect(t.Context(), server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if version := conn.PgConn().ParameterStatus("server_version"); !strings.HasPrefix(version, "17.") {
		t.Errorf("the downloaded server is version %s", version)
	}
}
