package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/twmb/franz-go/plugin/kslog"
)

// defaultPort is Kafka's, for brokers that are named without one.
const defaultPort = "9092"

// kafkaOptions returns what every Kafka client of this process begins with:
// brokers, client id, TLS, SASL and the log. It connects nowhere.
func (e *Env) kafkaOptions(c *Config) ([]kgo.Opt, error) {
	logger, err := e.logger(c)
	if err != nil {
		return nil, err
	}
	brokers, brokersErr := c.Kafka.brokers()
	tlsConfig, tlsErr := c.Kafka.TLS.config()
	mechanism, saslErr := c.Kafka.SASL.mechanism()
	if err := errors.Join(brokersErr, tlsErr, saslErr); err != nil {
		return nil, configError(placed(c, err))
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.ClientID(c.Kafka.ClientID),
		kgo.WithLogger(kslog.New(slog.New(clientLog{logger.Handler()}).With("source", "kafka client"))),
	}
	if tlsConfig != nil {
		options = append(options, kgo.DialTLSConfig(tlsConfig))
	}
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return options, nil
}

func (k *KafkaConfig) brokers() ([]string, error) {
	path := []string{"kafka", "brokers"}
	if len(k.Brokers) == 0 {
		return nil, fieldErrorf(path, "no broker is named: give --brokers, set CLAIMQ_BROKERS, or fill in the field")
	}
	var brokers []string
	for _, broker := range k.Brokers {
		if !strings.Contains(broker, ":") {
			broker = net.JoinHostPort(broker, defaultPort)
		}
		if _, _, err := net.SplitHostPort(broker); err != nil {
			return nil, fieldErrorf(path, "%q is not host:port", broker)
		}
		brokers = append(brokers, broker)
	}
	return brokers, nil
}

// config returns nil when TLS is off.
func (t *TLSConfig) config() (*tls.Config, error) {
	path := func(field string) []string { return []string{"kafka", "tls", field} }
	used := t.CAFile != "" || t.CertFile != "" || t.KeyFile != "" || t.ServerName != "" || t.InsecureSkipVerify
	if t.Enabled != nil && !*t.Enabled && used {
		return nil, fieldErrorf(path("enabled"), "is false and other fields of kafka.tls are set: leave them out, or it")
	}
	if !used && (t.Enabled == nil || !*t.Enabled) {
		return nil, nil
	}
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify, //nolint:gosec // the operator's explicit choice
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fieldErrorf(path("ca_file"), "%v", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fieldErrorf(path("ca_file"), "%s holds no certificate in PEM", t.CAFile)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, fieldErrorf(path("cert_file"), "cert_file and key_file belong together: one is missing")
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fieldErrorf(path("cert_file"), "%v", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// mechanism returns nil when nobody authenticates.
func (s *SASLConfig) mechanism() (sasl.Mechanism, error) {
	path := func(field string) []string { return []string{"kafka", "sasl", field} }
	password, passwordErr := secretReader(path("password"), s.Password, s.PasswordFile)
	token, tokenErr := secretReader(path("token"), s.Token, s.TokenFile)
	secretKey, secretKeyErr := secretReader(path("secret_key"), s.SecretKey, s.SecretKeyFile)
	sessionToken, sessionTokenErr := secretReader(path("session_token"), s.SessionToken, s.SessionTokenFile)
	if err := errors.Join(passwordErr, tokenErr, secretKeyErr, sessionTokenErr); err != nil {
		return nil, err
	}
	need := func(field string, given bool) error {
		if given {
			return nil
		}
		return fieldErrorf(path(field), "%s needs it", s.Mechanism)
	}
	hasPassword := s.Password != "" || s.PasswordFile != ""
	scramAuth := func(context.Context) (scram.Auth, error) {
		secret, err := password()
		return scram.Auth{Zid: s.AuthorizationID, User: s.User, Pass: string(secret), IsToken: s.DelegationToken}, err
	}
	switch s.Mechanism {
	case "":
		if s.User != "" || hasPassword || s.Token != "" || s.TokenFile != "" || s.AccessKey != "" {
			return nil, fieldErrorf(path("mechanism"), "is missing: %s", saslMechanisms)
		}
		return nil, nil
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			secret, err := password()
			return plain.Auth{Zid: s.AuthorizationID, User: s.User, Pass: string(secret)}, err
		}), errors.Join(need("user", s.User != ""), need("password", hasPassword))
	case "SCRAM-SHA-256":
		return scram.Sha256(scramAuth), errors.Join(need("user", s.User != ""), need("password", hasPassword))
	case "SCRAM-SHA-512":
		return scram.Sha512(scramAuth), errors.Join(need("user", s.User != ""), need("password", hasPassword))
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			secret, err := token()
			return oauth.Auth{Zid: s.AuthorizationID, Token: string(secret), Extensions: s.Extensions}, err
		}), need("token", s.Token != "" || s.TokenFile != "")
	case "AWS_MSK_IAM":
		return aws.ManagedStreamingIAM(func(context.Context) (aws.Auth, error) {
			secret, secretErr := secretKey()
			session, sessionErr := sessionToken()
			return aws.Auth{AccessKey: s.AccessKey, SecretKey: string(secret), SessionToken: string(session)}, errors.Join(secretErr, sessionErr)
		}), errors.Join(need("access_key", s.AccessKey != ""), need("secret_key", s.SecretKey != "" || s.SecretKeyFile != ""))
	}
	return nil, oneOf(path("mechanism"), s.Mechanism, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")
}

const saslMechanisms = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM"
