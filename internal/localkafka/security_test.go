package localkafka_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func trust(t *testing.T, file string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatalf("%s holds no certificate", file)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

func mechanisms(user, password string) map[string]sasl.Mechanism {
	scramAuth := scram.Auth{User: user, Pass: password}
	return map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: user, Pass: password}.AsMechanism(),
		"SCRAM-SHA-256": scramAuth.AsSha256Mechanism(),
		"SCRAM-SHA-512": scramAuth.AsSha512Mechanism(),
	}
}
