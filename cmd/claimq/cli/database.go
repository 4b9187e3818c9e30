package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/claimq/claimq/internal/sqlstate"
	"github.com/claimq/claimq/migrations"
)

// applicationName is what pg_stat_activity shows unless the address says another.
const applicationName = "claimq"

// schema returns the name of the schema with claimq's tables.
func (c *Config) schema() string { return cmp.Or(c.Database.Schema, migrations.DefaultSchema) }

// address returns the database's address, from wherever it was given.
func (c *Config) address() (Secret, error) {
	switch {
	case c.Database.DSN != "" && c.Database.DSNFile != "":
		return "", fieldErrorf([]string{"database", "dsn_file"}, "dsn is set too: leave one of the two out")
	case c.Database.DSNFile != "":
		dsn, err := readSecretFile(c.Database.DSNFile)
		if err != nil {
			return "", fieldErrorf([]string{"database", "dsn_file"}, "%v", err)
		}
		return dsn, nil
	case c.Database.DSN != "":
		return c.Database.DSN, nil
	}
	return "", fieldErrorf([]string{"database", "dsn"}, "no database is named: give --dsn, set CLAIMQ_DSN, or fill in the field")
}

// poolConfig returns how the pool is made. It connects nowhere.
func (c *Config) poolConfig() (*pgxpool.Config, error) {
	dsn, err := c.address()
	if err != nil {
		return nil, configError(placed(c, err))
	}
	if err := checkAddress(dsn); err != nil {
		return nil, configError(placed(c, fieldErrorf([]string{"database", "dsn"}, "%v", err)))
	}
	config, err := pgxpool.ParseConfig(string(dsn))
	if err != nil {
		return nil, configError(placed(c, fieldErrorf([]string{"database", "dsn"}, "%v", addressProblem(err))))
	}
	if c.Database.MaxConnections < 0 {
		return nil, configError(placed(c, fieldErrorf([]string{"database", "max_connections"}, "must not be negative")))
	}
	if c.Database.MaxConnections > 0 {
		config.MaxConns = int32(min(c.Database.MaxConnections, 1<<16))
	}
	c.prepare(config.ConnConfig)
	if c.Database.Pooler {
		// Named prepared statements live in one server connection, and the next
		// transaction may have another. cache_describe uses the unnamed one.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	password, err := c.databasePassword()
	if err != nil {
		return nil, configError(placed(c, err))
	}
	config.BeforeConnect = func(_ context.Context, connection *pgx.ConnConfig) error {
		secret, err := password()
		if err == nil && secret != "" {
			connection.Password = string(secret)
		}
		return err
	}
	return config, nil
}

func (c *Config) prepare(connection *pgx.ConnConfig) {
	if connection.RuntimeParams["application_name"] == "" {
		connection.RuntimeParams["application_name"] = applicationName
	}
}

// databasePassword returns what tells the password for each new connection: ""
// when it is in the address.
func (c *Config) databasePassword() (func() (Secret, error), error) {
	return secretReader([]string{"database", "password"}, c.Database.Password, c.Database.PasswordFile)
}

// secretReader returns what reads a secret that is given as it is or in a file.
// The file is read now, to find mistakes, and at every call.
func secretReader(path []string, secret Secret, file string) (func() (Secret, error), error) {
	if file == "" {
		return func() (Secret, error) { return secret, nil }, nil
	}
	filePath := append(append([]string(nil), path[:len(path)-1]...), path[len(path)-1]+"_file")
	if secret != "" {
		return nil, fieldErrorf(filePath, "%s is set too: leave one of the two out", path[len(path)-1])
	}
	if _, err := readSecretFile(file); err != nil {
		return nil, fieldErrorf(filePath, "%v", err)
	}
	return func() (Secret, error) { return readSecretFile(file) }, nil
}

// openPool connects to the database and checks that it can be worked with: that
// it answers, that no pooler stands in front that is not told of, that the schema
// has the version that this binary needs. The caller closes the pool.
func (e *Env) openPool(ctx context.Context, c *Config) (*pgxpool.Pool, error) {
	config, err := c.poolConfig()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if err := c.checkDatabase(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func (c *Config) checkDatabase(ctx context.Context, pool *pgxpool.Pool) error {
	if err := pool.Ping(ctx); err != nil {
		return connectError(err)
	}
	if !c.Database.Pooler {
		if err := probePooler(ctx, pool.Config().ConnConfig); err != nil {
			return err
		}
	}
	status, err := migrations.Read(ctx, pool, migrations.Options{Schema: c.schema()})
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return status.Check()
}

// connectDirect opens one connection for migrations: not through a pooler, since
// the lock that they hold belongs to a session. The caller closes it.
func (e *Env) connectDirect(ctx context.Context, c *Config) (*pgx.Conn, error) {
	direct := *c
	if c.Database.DirectDSN != "" || c.Database.DirectDSNFile != "" {
		direct.Database.DSN, direct.Database.DSNFile = c.Database.DirectDSN, c.Database.DirectDSNFile
	} else if c.Database.Pooler {
		return nil, configError(placed(c, fieldErrorf([]string{"database", "direct_dsn"},
			"migrations need a direct connection and database.pooler says that dsn leads to a pooler: give an address that leads past it")))
	}
	direct.Database.Pooler = false
	config, err := direct.poolConfig()
	if err != nil {
		return nil, err
	}
	if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, connectError(err)
	}
	return conn, nil
}

// checkAddress finds an address that cannot be read before pgx does, whose error
// could quote a part of the password.
func checkAddress(dsn Secret) error {
	if !strings.HasPrefix(string(dsn), "postgres://") && !strings.HasPrefix(string(dsn), "postgresql://") {
		// A URL of another kind would pass for a keyword.
		if !strings.Contains(string(dsn), "=") || strings.Contains(string(dsn), "://") {
			return errors.New("it is neither a URL, postgres://user@host:5432/name, nor keywords and values, host=… user=…")
		}
		return nil
	}
	if _, err := url.Parse(string(dsn)); err != nil {
		return errors.New("the URL cannot be read: special characters in a user or a password must be written as %40 and the like; or give the password in database.password, where it needs no escaping")
	}
	return nil
}

// addressProblem returns what pgx finds wrong with an address without the address.
func addressProblem(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return errors.New("it cannot be read; an address is postgres://user@host:5432/name?sslmode=require")
}

// connectError adds to a failed connection what a person can do about it. pgx's
// own text names user, database and host, and no password.
func connectError(err error) error {
	advice := map[string]string{
		sqlstate.InvalidPassword: "the password is wrong: see database.password, database.dsn or CLAIMQ_DSN",
		"28000":                  "the server does not let this user in from here: see its pg_hba.conf",
		"3D000":                  "there is no such database: create it, or name another in database.dsn",
	}[sqlstate.Code(err)]
	if advice == "" {
		return fmt.Errorf("database: %w", err)
	}
	return fmt.Errorf("database: %s (%w)", advice, err)
}

// waitWorthwhile reports whether a database error can pass by itself.
func waitWorthwhile(err error) bool { return sqlstate.Infrastructure(err) }
