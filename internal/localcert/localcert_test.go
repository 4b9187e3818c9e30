package localcert_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/claimq/claimq/internal/localcert"
)

func TestClientThatTrustsTheAuthorityAcceptsItsHostsOnly(t *testing.T) {
	t.Parallel()
	files, err := localcert.Generate(filepath.Join(t.TempDir(), "tls"))
	if err != nil {
		t.Fatal(err)
	}
	for _, keyFile := range []string{files.KeyFile, files.KeystoreFile} {
		pair, err := tls.LoadX509KeyPair(files.CertFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"localhost", "127.0.0.1"} {
			if err := verify(t, pair, files.CAFile, name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := verify(t, pair, files.CAFile, "elsewhere.example"); err == nil {
			t.Error("the certificate holds for another host")
		}
	}
	other, err := localcert.Generate(filepath.Join(t.TempDir(), "tls"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(other.CertFile, other.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(t, pair, files.CAFile, "localhost"); err == nil {
		t.Error("a certificate of another authority was trusted")
	}
}

// verify checks the server's certificate as a client does that connects to
// name and trusts the authority.
func verify(t *testing.T, pair tls.Certificate, caFile, name string) error {
	t.Helper()
	text, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatalf("%s holds no certificate", caFile)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
	return err
}

func TestKeysAreForTheirOwnerOnly(t *testing.T) {
	t.Parallel()
	files, err := localcert.Generate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{files.KeyFile, files.KeystoreFile} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", name, info.Mode().Perm())
		}
	}
	if _, err := localcert.Generate("/dev/null/no"); err == nil {
		t.Error("a directory that cannot be made was accepted")
	}
}
