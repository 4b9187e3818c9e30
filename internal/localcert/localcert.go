// Package localcert generates throw-away TLS certificates for servers on this
// machine.
package localcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Files names the PEM files of one certificate.
type Files struct {
	// CAFile is the authority that clients trust.
	CAFile string
	// CertFile and KeyFile (PKCS #8) are the server's, for 127.0.0.1, ::1 and
	// localhost.
	CertFile, KeyFile string
	// KeystoreFile holds key and certificates in one file, as Java reads them.
	KeystoreFile string
}

// validity is long enough for a stack that a developer forgets about.
const validity = 365 * 24 * time.Hour

// Generate makes a new authority and one server certificate under it, in dir,
// replacing what is there. The authority's key is thrown away.
func Generate(dir string) (Files, error) {
	files := Files{
		CAFile:       filepath.Join(dir, "ca.pem"),
		CertFile:     filepath.Join(dir, "server.pem"),
		KeyFile:      filepath.Join(dir, "server.key"),
		KeystoreFile: filepath.Join(dir, "keystore.pem"),
	}
	authority, authorityKey, err := authorityTemplate()
	if err != nil {
		return Files{}, fmt.Errorf("generate certificate authority: %w", err)
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return Files{}, fmt.Errorf("generate certificate authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Files{}, fmt.Errorf("generate server key: %w", err)
	}
	certificate := template("localhost", 2)
	certificate.DNSNames = []string{"localhost"}
	certificate.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	certificate.KeyUsage = x509.KeyUsageDigitalSignature
	certificate.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, certificate, authority, key.Public(), authorityKey)
	if err != nil {
		return Files{}, fmt.Errorf("generate server certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Files{}, fmt.Errorf("generate server key: %w", err)
	}
	return files, files.write(dir, encode("CERTIFICATE", authorityDER), encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER))
}

func (f Files) write(dir string, authority, certificate, key []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	keystore := append(append(append([]byte(nil), key...), certificate...), authority...)
	for name, content := range map[string][]byte{
		f.CAFile: authority, f.CertFile: certificate, f.KeyFile: key, f.KeystoreFile: keystore,
	} {
		// Postgres refuses a key that others can read.
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return fmt.Errorf("write certificate: %w", err)
		}
	}
	return nil
}

func authorityTemplate() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	certificate := template("claimq local authority", 1)
	certificate.IsCA = true
	certificate.BasicConstraintsValid = true
	certificate.KeyUsage = x509.KeyUsageCertSign
	return certificate, key, nil
}

func template(name string, serial int64) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		// Containers and virtual machines may lag behind.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(validity),
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
