package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// BinDirVariable names the environment variable that says where the server
// binaries are; it wins over every search.
const BinDirVariable = "CLAIMQ_PG_BIN"

// MinimumMajor is the oldest Postgres that claimq runs on.
const MinimumMajor = 15

// ErrNoBinaries is returned, wrapped, when no Postgres of [MinimumMajor] or
// newer is found on this machine.
var ErrNoBinaries = errors.New("no Postgres server binaries found")

// binaryGlobs are the places where packages put the binaries without adding
// them to PATH: Debian and Ubuntu, Red Hat, Homebrew (both prefixes),
// Postgres.app, MacPorts and FreeBSD.
var binaryGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/opt/local/lib/postgresql*/bin",
	"/usr/local/bin",
}

// FindBinaries returns the directory of the newest server binaries that are at
// least [MinimumMajor]: the one in CLAIMQ_PG_BIN and no other when that is
// set, else from PATH, pg_config and the usual places of packages. The error
// wraps [ErrNoBinaries] and says what to install.
func FindBinaries() (string, error) {
	if dir := os.Getenv(BinDirVariable); dir != "" {
		major, err := serverMajor(dir)
		if err != nil {
			return "", fmt.Errorf("%s=%s: %w: %w", BinDirVariable, dir, ErrNoBinaries, err)
		}
		if major < MinimumMajor {
			return "", fmt.Errorf("%s=%s holds Postgres %d: %w: claimq needs %d or newer", BinDirVariable, dir, major, ErrNoBinaries, MinimumMajor)
		}
		return dir, nil
	}
	best, bestMajor := "", 0
	for _, dir := range candidateDirs() {
		if major, err := serverMajor(dir); err == nil && major >= MinimumMajor && major > bestMajor {
			best, bestMajor = dir, major
		}
	}
	if best == "" {
		return "", fmt.Errorf("%w: install Postgres %d or newer (Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql@17), or name the directory of its binaries in %s", ErrNoBinaries, MinimumMajor, BinDirVariable)
	}
	return best, nil
}

func candidateDirs() []string {
	var dirs []string
	if found, err := exec.LookPath("postgres"); err == nil {
		// Debian-like wrappers and Homebrew links lead elsewhere.
		if resolved, err := filepath.EvalSymlinks(found); err == nil {
			dirs = append(dirs, filepath.Dir(resolved))
		}
		dirs = append(dirs, filepath.Dir(found))
	}
	if output, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(output)))
	}
	for _, pattern := range binaryGlobs {
		matches, _ := filepath.Glob(pattern)
		dirs = append(dirs, matches...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// serverMajor asks the server binary for its version. initdb must be there
// too: client packages bring neither.
func serverMajor(dir string) (int, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0, err
	}
	output, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("postgres --version: %w", err)
	}
	match := versionPattern.FindSubmatch(output)
	if match == nil {
		return 0, fmt.Errorf("postgres --version says %q", output)
	}
	return strconv.Atoi(string(match[1]))
}

// hasLibrary tells whether a loadable module is installed beside the binaries.
func hasLibrary(binDir, name string) bool {
	root := filepath.Dir(binDir)
	dirs := []string{filepath.Join(root, "lib"), filepath.Join(root, "lib", "postgresql")}
	if output, err := exec.Command(filepath.Join(binDir, "pg_config"), "--pkglibdir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(output)))
	}
	for _, dir := range dirs {
		for _, suffix := range []string{".so", ".dylib"} {
			if _, err := os.Stat(filepath.Join(dir, name+suffix)); err == nil {
				return true
			}
		}
	}
	return false
}
