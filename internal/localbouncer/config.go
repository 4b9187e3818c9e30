package localbouncer

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

func (s *Server) configFile() string { return filepath.Join(s.Dir, "pgbouncer.ini") }

// writeConfig writes pgbouncer.ini for the present DSN. The file is replaced
// and not rewritten, so that a reload never reads half of it.
func (s *Server) writeConfig() error {
	target, err := pgx.ParseConfig(s.config.DSN)
	if err != nil {
		return fmt.Errorf("DSN: %w", err)
	}
	s.database = target.Database
	var text strings.Builder
	text.WriteString("[databases]\n")
	fmt.Fprintf(&text, "* = host=%s port=%d user=%s", quote(target.Host), target.Port, quote(target.User))
	if target.Password != "" {
		fmt.Fprintf(&text, " password=%s", quote(target.Password))
	}
	text.WriteString("\n\n[pgbouncer]\n")
	settings := s.settings()
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = %s\n", key, settings[key])
	}
	fresh := s.configFile() + ".new"
	if err := os.WriteFile(fresh, []byte(text.String()), 0o600); err != nil {
		return err
	}
	if err := s.account.Own(fresh); err != nil {
		return err
	}
	return os.Rename(fresh, s.configFile())
}

func (s *Server) settings() map[string]string {
	all := map[string]string{
		"listen_addr":     "127.0.0.1",
		"listen_port":     strconv.Itoa(s.Port),
		"unix_socket_dir": "",
		"pool_mode":       "transaction",
		"auth_type":       "any",
		// The user that AdminDSN names.
		"admin_users":       "claimq",
		"max_client_conn":   "1000",
		"default_pool_size": strconv.Itoa(s.config.PoolSize),
		// Runtime parameters that clients often send and that a shared
		// connection cannot keep.
		"ignore_startup_parameters": "extra_float_digits,statement_timeout,lock_timeout,idle_in_transaction_session_timeout,search_path,options",
		// A server that is down is tried again soon; the default, 15 seconds,
		// would be what a failover test measures.
		"server_login_retry": "1",
	}
	maps.Copy(all, s.config.Settings)
	return all
}

// quote writes a value of a PgBouncer connection string: quotes are doubled.
func quote(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }
