package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/claimq/claimq/internal/localproc"
)

// downloadVersion is the release that is fetched when the machine has none.
const downloadVersion = embeddedpostgres.V17

// downloadDir is where downloaded binaries stay for the next time: the user's
// cache, or for root a system-wide one, because the server's user cannot enter
// root's home.
func downloadDir() (string, error) {
	name := filepath.Join("claimq", "postgres-"+string(downloadVersion))
	if os.Geteuid() == 0 {
		return filepath.Join("/var/cache", name), nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place for downloaded Postgres binaries: %w; set HOME or %s", err, BinDirVariable)
	}
	return filepath.Join(cache, name), nil
}

// download returns the directory of downloaded server binaries and fetches
// them first when that has not happened on this machine. Two processes do it
// once. They hold initdb, pg_ctl and postgres only: no pg_basebackup, so no
// standby.
func download(ctx context.Context, logf func(string, ...any)) (string, error) {
	dir, err := downloadDir()
	if err != nil {
		return "", err
	}
	return downloadTo(ctx, dir, logf)
}

func downloadTo(ctx context.Context, dir string, logf func(string, ...any)) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a place for downloaded Postgres binaries: %w", err)
	}
	unlock, err := localproc.Lock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	unpacked := filepath.Join(dir, "unpacked")
	complete := filepath.Join(dir, "complete")
	if _, err := os.Stat(complete); err == nil {
		return filepath.Join(unpacked, "bin"), nil
	}
	logf("downloading Postgres %s (once, about 10 MB) to %s", downloadVersion, dir)
	if err := fetch(ctx, "", dir, unpacked); err != nil {
		return "", fmt.Errorf("download Postgres %s: %w; install Postgres %d or newer, or name the directory of its binaries in %s", downloadVersion, err, MinimumMajor, BinDirVariable)
	}
	if err := os.WriteFile(complete, nil, 0o644); err != nil {
		return "", fmt.Errorf("download Postgres: %w", err)
	}
	return filepath.Join(unpacked, "bin"), nil
}

// noLocale makes the library's initdb fail before it has done anything.
const noLocale = "claimq-wants-the-binaries-only"

// fetch has embedded-postgres download, verify and unpack. The library offers this
// only as the first part of Start; its second part, a server of its own, is kept
// from happening, so that nothing has to be stopped whenever ctx ends. An error of
// that part is no matter when the binaries are good by then.
//
// The library cannot be interrupted. When ctx ends it is left behind, with nothing
// but a download in hand, which ends with the process at the latest.
func fetch(ctx context.Context, repository, cacheDir, unpacked string) error {
	port, err := localproc.FreePort()
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "cq-pg-fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	defer removeLibraryLogs()
	defer http.DefaultClient.CloseIdleConnections() // the library's client; idle ones hold goroutines
	config := embeddedpostgres.DefaultConfig().
		Version(downloadVersion).
		Port(uint32(port)). //nolint:gosec // a port
		CachePath(cacheDir).
		BinariesPath(unpacked).
		RuntimePath(filepath.Join(scratch, "run")).
		Locale(noLocale).
		Logger(io.Discard)
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	ended := make(chan error, 1)
	go func() { ended <- embeddedpostgres.NewDatabase(config).Start() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, missing := serverMajor(filepath.Join(unpacked, "bin")); missing != nil {
		return errors.Join(err, missing)
	}
	return nil
}

// removeLibraryLogs removes the log files that the library makes in the directory
// for temporary files and leaves there, open. By that they are told from those of
// other processes.
func removeLibraryLogs() {
	names, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	for _, name := range names {
		var file syscall.Stat_t
		if syscall.Stat(name, &file) != nil {
			continue
		}
		for descriptor := 3; descriptor < 1024; descriptor++ {
			var open syscall.Stat_t
			if syscall.Fstat(descriptor, &open) == nil && open.Dev == file.Dev && open.Ino == file.Ino {
				_ = os.Remove(name)
			}
		}
	}
}
