package localpg

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

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
	if err := fetch(dir, unpacked); err != nil {
		return "", fmt.Errorf("download Postgres %s: %w; install Postgres %d or newer, or name the directory of its binaries in %s", downloadVersion, err, MinimumMajor, BinDirVariable)
	}
	if err := os.WriteFile(complete, nil, 0o644); err != nil {
		return "", fmt.Errorf("download Postgres: %w", err)
	}
	return filepath.Join(unpacked, "bin"), nil
}

// fetch has embedded-postgres download, verify and unpack. The library offers
// this only as the first part of Start, whose second part, a server of its own,
// is stopped at once; as root it fails there by necessity, which is no
// matter when the binaries are good by then.
func fetch(cacheDir, unpacked string) error {
	port, err := localproc.FreePort()
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "cq-pg-fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(downloadVersion).
		Port(uint32(port)).
		CachePath(cacheDir).
		BinariesPath(unpacked).
		RuntimePath(filepath.Join(scratch, "run")).
		Logger(io.Discard))
	startErr := server.Start()
	if startErr == nil {
		startErr = server.Stop()
	}
	if _, err := serverMajor(filepath.Join(unpacked, "bin")); err != nil {
		if startErr != nil {
			return startErr
		}
		return err
	}
	return nil
}
