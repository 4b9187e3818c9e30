package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/localcert"
	"github.com/claimq/claimq/internal/localkafka"
	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/pgtest"
)

// Brokers that want TLS and SASL, and a Postgres over TLS with its name verified.
func TestRunOverTLSWithEachMechanism(t *testing.T) {
	t.Parallel()
	const user, password = "orders", "pass.word-1"
	kafka := kafkatest.Cluster(t, localkafka.Config{
		TLS: true, SASL: []localkafka.Mechanism{localkafka.Plain, localkafka.ScramSHA256, localkafka.ScramSHA512},
		Users: map[string]string{user: password},
	})
	postgres := pgtest.Server(t, localpg.Config{TLS: true, Password: "secret"})
	address, _, _ := strings.Cut(postgres.DSN(""), "?")
	verified := address + "?" + url.Values{
		"sslmode": {"verify-full"}, "sslrootcert": {postgres.CAFile},
	}.Encode()
	stranger, err := localcert.Generate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}

	for _, mechanism := range []localkafka.Mechanism{localkafka.Plain, localkafka.ScramSHA256, localkafka.ScramSHA512} {
		t.Run(string(mechanism), func(t *testing.T) {
			s := newShopOn(t, postgres.DSN(""), kafka.Brokers(), 2)
			s.kcat(nil, `k|{"order_id":"o-1","customer":"c"}`, `k|{"order_id":"o-2"}`)
			plain := s.ordersConfig()
			secure := func(ca, password, dsn string) string {
				config := strings.Replace(plain, "brokers: "+s.brokers[0], fmt.Sprintf(
					"brokers: %s\n  tls: {ca_file: %q}\n  sasl: {mechanism: %s, user: %s, password: %s}", kafka.SecureBrokers()[0], ca, mechanism, user, password), 1)
				return strings.Replace(config, "dsn: "+s.db.DSN, "dsn: "+dsn, 1)
			}
			mine := verified + "&application_name=" + s.db.Schema
			run := claimq(t, secure(kafka.CAFile, password, mine), "run")
			eventually(t, "the rows", func() bool { return s.ask(`select count(*) from SCHEMA.orders`) == 2 })
			encrypted := `select count(*) from pg_stat_ssl join pg_stat_activity using (pid) where application_name = '` + s.db.Schema + `' and `
			if n := s.ask(encrypted + `ssl`); n == 0 {
				t.Error("no connection to Postgres is encrypted")
			}
			if n := s.ask(encrypted + `not ssl`); n != 0 {
				t.Errorf("%d connections to Postgres are not encrypted", n)
			}
			run.stop()

			for name, c := range map[string]struct {
				config, says string
			}{
				"a wrong password":     {secure(kafka.CAFile, "wrong", mine), "kafka.sasl"},
				"a stranger's Kafka":   {secure(stranger.CAFile, password, mine), "kafka.tls.ca_file"},
				"a stranger's server":  {secure(kafka.CAFile, password, strings.Replace(mine, url.QueryEscape(postgres.CAFile), url.QueryEscape(stranger.CAFile), 1)), "certificate"},
				"no TLS towards Kafka": {strings.Replace(plain, s.brokers[0], kafka.SecureBrokers()[0], 1), "kafka.tls"},
			} {
				t.Run(name, func(t *testing.T) {
					run := claimq(t, c.config, "run")
					if code, output := run.ended(); code != 1 || !strings.Contains(output, c.says) {
						t.Errorf("exit code %d, want 1 and %q:\n%s", code, c.says, output)
					}
					if run.said("pass.word-1") || run.said("secret") {
						t.Errorf("it tells a password:\n%s", run.output())
					}
				})
			}
		})
	}
}
