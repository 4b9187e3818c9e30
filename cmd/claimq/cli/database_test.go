package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/claimq/claimq/internal/localbouncer"
	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/pgtest"
)

func TestThePoolIsMadeAsConfigured(t *testing.T) {
	t.Parallel()
	config := &Config{Database: DatabaseConfig{DSN: "postgres://u@h/d?application_name=mine", MaxConnections: 17, Pooler: true}}
	got, err := config.poolConfig()
	if err != nil {
		t.Fatal(err)
	}
	if got.MaxConns != 17 || got.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheDescribe || got.ConnConfig.RuntimeParams["application_name"] != "mine" {
		t.Errorf("%d connections, mode %v, name %s", got.MaxConns, got.ConnConfig.DefaultQueryExecMode, got.ConnConfig.RuntimeParams["application_name"])
	}
	config = &Config{Database: DatabaseConfig{DSN: "host=h user=u"}}
	if got, err = config.poolConfig(); err != nil {
		t.Fatal(err)
	}
	if got.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement || got.ConnConfig.RuntimeParams["application_name"] != "claimq" {
		t.Errorf("mode %v, name %s", got.ConnConfig.DefaultQueryExecMode, got.ConnConfig.RuntimeParams["application_name"])
	}
	config.Database.MaxConnections = -1
	if _, err := config.poolConfig(); err == nil {
		t.Error("a negative number of connections is accepted")
	}
}

func TestTheAddressComesFromAFile(t *testing.T) {
	t.Parallel()
	config := &Config{Database: DatabaseConfig{DSNFile: writeFile(t, "dsn", "postgres://u@from-file/d\n")}}
	got, err := config.poolConfig()
	if err != nil || got.ConnConfig.Host != "from-file" {
		t.Errorf("%+v, %v", got, err)
	}
	config.Database.DSNFile += ".none"
	if _, err := config.poolConfig(); exitCode(err) != ExitConfig || !strings.Contains(err.Error(), "database.dsn_file: open ") {
		t.Errorf("%v", err)
	}
}

// A server that asks for a password, over TLS.
func TestPasswordsAndTLS(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, localpg.Config{Password: topSecret, TLS: true})
	address := func(password, options string) string {
		return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/%s?%s", url.QueryEscape(password), server.Port, localpg.DefaultDatabase, options)
	}
	verified := "sslmode=verify-full&sslrootcert=" + url.QueryEscape(server.CAFile)
	for name, test := range map[string]struct {
		dsn, password string
		want          []string // "": it works
	}{
		"right":                   {dsn: address(topSecret, "sslmode=disable")},
		"right, beside":           {dsn: address("", "sslmode=disable"), password: topSecret},
		"right, verified":         {dsn: address(topSecret, verified)},
		"wrong":                   {dsn: address("wrong-"+topSecret, "sslmode=disable"), want: []string{"the password is wrong: see database.password, database.dsn or CLAIMQ_DSN", "28P01"}},
		"wrong, beside":           {dsn: address(topSecret, verified), password: "wrong-" + topSecret, want: []string{"the password is wrong"}},
		"no such user":            {dsn: strings.Replace(address(topSecret, verified), "//postgres:", "//nobody:", 1), want: []string{"the password is wrong"}},
		"an authority of another": {dsn: address(topSecret, "sslmode=verify-full"), want: []string{"certificate"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newTestEnv(t, "CLAIMQ_DSN="+test.dsn, "CLAIMQ_DATABASE__PASSWORD="+test.password)
			if test.want == nil {
				wantAll(t, env.refuse(ExitFailed, "migrate", "status"), "the database has no claimq schema")
				return
			}
			got := env.refuse(ExitFailed, "migrate", "status")
			wantAll(t, got, test.want...)
			if strings.Contains(got, topSecret) {
				t.Errorf("the password is told: %s", got)
			}
			// Run must not wait for what does not pass.
			_, err := (&Env{}).connectDirect(t.Context(), &Config{Database: DatabaseConfig{DSN: Secret(test.dsn), Password: Secret(test.password)}})
			if err == nil || curable(err) {
				t.Errorf("%v is waited for", err)
			}
		})
	}
	t.Run("a password file is read again", func(t *testing.T) {
		t.Parallel()
		file := writeFile(t, "password", "wrong\n")
		config := &Config{Database: DatabaseConfig{DSN: Secret(address("", "sslmode=disable")), PasswordFile: file}}
		poolConfig, err := config.poolConfig()
		if err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), poolConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if err := pool.Ping(t.Context()); err == nil {
			t.Fatal("a wrong password works")
		}
		if err := os.WriteFile(file, []byte(topSecret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := pool.Ping(t.Context()); err != nil {
			t.Errorf("the new password is not read: %v", err)
		}
	})
}

func bouncer(t *testing.T, settings map[string]string) *localbouncer.Server {
	t.Helper()
	server, err := localbouncer.Start(t.Context(), localbouncer.Config{DSN: pgtest.DSN(t), Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return server
}

func TestAPoolerIsFoundAndTheSettingIsNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	server := bouncer(t, nil)
	config := &Config{Database: DatabaseConfig{DSN: Secret(server.DSN()), Schema: db.Schema}}
	for range 5 { // the server connections are in another order each time
		pool, err := (&Env{}).openPool(t.Context(), config)
		if err == nil {
			pool.Close()
			t.Fatal("the pooler is not found")
		}
		if !errors.Is(err, errPooler) || curable(err) {
			t.Fatalf("%v", err)
		}
	}
	env := newTestEnv(t, "CLAIMQ_DSN="+server.DSN(), "CLAIMQ_SCHEMA="+db.Schema, "CLAIMQ_BROKERS=127.0.0.1:1")
	file := writeFile(t, "claimq.yaml", "http: {listen: 'off'}\nqueues:\n"+queueYAML("q", "x", "a"))
	wantAll(t, runOnce(t, env, ExitFailed, "-c", file), "set database.pooler: true")

	config.Database.Pooler = true
	pool, err := (&Env{}).openPool(t.Context(), config)
	if err != nil {
		t.Fatalf("told of the pooler: %v", err)
	}
	pool.Close()
}

func TestAPoolerInSessionModeAndADirectConnectionPassTheProbe(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, dsn := range map[string]string{
		"direct":  db.DSN,
		"session": bouncer(t, map[string]string{"pool_mode": "session"}).DSN(),
	} {
		config := &Config{Database: DatabaseConfig{DSN: Secret(dsn), Schema: db.Schema}}
		pool, err := (&Env{}).openPool(t.Context(), config)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		pool.Close()
	}
}

func TestAFullPoolerLeavesTheProbeWithoutAVerdict(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	server, err := localbouncer.Start(t.Context(), localbouncer.Config{DSN: pgtest.DSN(t), PoolSize: 1, Settings: map[string]string{"query_wait_timeout": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop(context.WithoutCancel(t.Context())) })
	config := &Config{Database: DatabaseConfig{DSN: Secret(server.DSN()), Schema: db.Schema}}
	pool, err := (&Env{}).openPool(t.Context(), config)
	// One connection: what the probe prepares is where it looks for it. It must end, either way.
	if err == nil {
		pool.Close()
	} else if !errors.Is(err, errPooler) {
		t.Errorf("%v", err)
	}
}

func TestRunWorksThroughAPooler(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t, pgtest.DSN(t))
	if _, err := db.Pool.Exec(t.Context(), "create schema "+db.Schema); err != nil {
		t.Fatal(err)
	}
	table := sink(t, db)
	kafka := startKafka(t, "a")
	env := newTestEnv(t, "CLAIMQ_DATABASE__POOLER=true", "CLAIMQ_DATABASE__DIRECT_DSN="+db.DSN)
	p := start(t, env, "--migrate", "-c", runFile(t, bouncer(t, nil).DSN(), db.Schema, kafka.ListenAddrs(), queueYAML("first", table, "a")))
	p.waitReady()
	produce(t, kafka.ListenAddrs(), "a", "1", "2", "1")
	eventually(t, "two rows", func() bool { return count(t, db, "select count(*) from "+table) == 2 })
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestOpenPoolRefusesAnotherSchemaVersion(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := &Config{Database: DatabaseConfig{DSN: Secret(db.DSN), Schema: db.Schema}}
	for version, want := range map[string]string{"1": "run `claimq migrate up`", "999": "start a newer claimq"} {
		if _, err := db.Pool.Exec(t.Context(), "update "+db.Schema+".schema_version set version = "+version); err != nil {
			t.Fatal(err)
		}
		if _, err := (&Env{}).openPool(t.Context(), config); err == nil || !strings.Contains(err.Error(), want) || curable(err) {
			t.Errorf("version %s: %v", version, err)
		}
	}
}

func TestAStandbyIsWaitedFor(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, localpg.Config{})
	standby := pgtest.Standby(t, primary, localpg.Config{})
	migrate := newTestEnv(t, "CLAIMQ_DSN="+primary.DSN(""))
	migrate.mustRun("migrate", "up")
	config := &Config{Database: DatabaseConfig{DSN: Secret(standby.DSN(""))}}
	poolConfig, err := config.poolConfig()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), poolConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	r := &runner{env: &Env{}, config: config, pool: pool}
	eventually(t, "the standby has the schema", func() bool {
		return errors.Is(r.tryDatabase(t.Context()), errStandby)
	})
	if !curable(errStandby) {
		t.Error("it is not waited for")
	}
}
