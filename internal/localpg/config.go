package localpg

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Superuser is the name of the only role that a new server has.
const Superuser = "postgres"

// DefaultDatabase is the database that exists after [Start] unless
// Config.Database names another one.
const DefaultDatabase = "claimq"

// Config says how to start a server. The zero value is a durable server of its
// own in a temporary directory, on a free port, that [Server.Stop] removes.
type Config struct {
	// Dir keeps the server's files (data, socket, log). It is made when it does
	// not exist; data from an earlier run is used again. Stop leaves a named
	// Dir in place. Empty: a temporary directory that Stop removes.
	//
	// Its path must be short: Unix sockets allow about 100 bytes.
	Dir string

	// Port to listen on at 127.0.0.1. Zero takes a free one, which stays the
	// same across restarts.
	Port int

	// Database is created when it does not exist. Default: DefaultDatabase.
	Database string

	// NoFsync turns off fsync and full_page_writes: several
	// times faster, and a crash of the *machine* loses data. A crash of the
	// server alone does not. For tests.
	NoFsync bool

	// Password of the superuser, asked for on TCP connections (SCRAM). Empty:
	// nobody is asked for one. It takes effect when the data directory is new.
	Password string

	// TLS makes the server accept TLS, under a certificate generated for
	// 127.0.0.1 and localhost; Server.CAFile names the authority to trust.
	// Plain connections stay possible.
	TLS bool

	// Settings are lines of postgresql.conf; they win over all that the
	// package sets itself.
	Settings map[string]string

	// BinDir is the directory of the server binaries. Default: FindBinaries,
	// else a download.
	BinDir string

	// NoDownload makes Start fail when no binaries are found.
	NoDownload bool

	// Logf is told what takes long (a download). Default: nothing is said.
	Logf func(format string, args ...any)
}

func (c Config) withDefaults() Config {
	if c.Database == "" {
		c.Database = DefaultDatabase
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	return c
}

// settings are written below initdb's own in postgresql.conf, where the last
// one wins.
func (c Config) settings(port int, socketDir, binDir string, certificate certificateFiles) map[string]string {
	all := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": socketDir,
		"max_connections":         "100",
		"logging_collector":       "off",
		"log_destination":         "stderr",
		"wal_level":               "replica",
		"max_wal_senders":         "10",
		"hot_standby":             "on",
		// A standby tells and retries soon, so that tests need not wait for it.
		"wal_receiver_status_interval": "1s",
		"wal_retrieve_retry_interval":  "200ms",
		// Dynamic shared memory lives in the data directory: a server that is
		// killed then leaves nothing in /dev/shm.
		"dynamic_shared_memory_type": "mmap",
	}
	if hasLibrary(binDir, "pg_stat_statements") {
		all["shared_preload_libraries"] = "pg_stat_statements"
	}
	if c.NoFsync {
		all["fsync"] = "off"
		all["full_page_writes"] = "off"
	}
	if c.TLS {
		all["ssl"] = "on"
		all["ssl_cert_file"] = certificate.cert
		all["ssl_key_file"] = certificate.key
	}
	maps.Copy(all, c.Settings)
	return all
}

type certificateFiles struct{ ca, cert, key string }

// writeSettings puts the settings into their own file and includes it at the
// end of postgresql.conf once, so that a restart over kept data replaces them.
func writeSettings(dataDir string, settings map[string]string) error {
	const name = "claimq.conf"
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", key, strings.ReplaceAll(settings[key], "'", "''"))
	}
	if err := os.WriteFile(filepath.Join(dataDir, name), []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("write server settings: %w", err)
	}
	mainFile := filepath.Join(dataDir, "postgresql.conf")
	present, err := os.ReadFile(mainFile)
	if err != nil {
		return fmt.Errorf("read server settings: %w", err)
	}
	include := "\ninclude '" + name + "'\n"
	if strings.Contains(string(present), include) {
		return nil
	}
	if err := os.WriteFile(mainFile, append(present, include...), 0o600); err != nil {
		return fmt.Errorf("write server settings: %w", err)
	}
	return nil
}
