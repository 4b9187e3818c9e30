package cli

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/claimq/claimq/internal/localcert"
	"github.com/claimq/claimq/internal/pgtest"
)

// ping asks Kafka as run does before it starts.
func ping(t *testing.T, config *Config) error {
	t.Helper()
	options, err := newTestEnvPointer(t).kafkaOptions(config)
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{kafka: options}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return r.tryKafka(ctx)
}

func newTestEnvPointer(t *testing.T) *Env {
	t.Helper()
	return &newTestEnv(t).Env
}

// secureKafka starts an in-process Kafka behind TLS and SASL.
func secureKafka(t *testing.T) (cluster *kfake.Cluster, certificates localcert.Files) {
	t.Helper()
	certificates, err := localcert.Generate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certificates.CertFile, certificates.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}),
		kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "plain", topSecret),
		kfake.Superuser("SCRAM-SHA-256", "scram256", topSecret),
		kfake.Superuser("SCRAM-SHA-512", "scram512", topSecret))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster, certificates
}

func TestSASLOverTLS(t *testing.T) {
	t.Parallel()
	cluster, certificates := secureKafka(t)
	secretFile := writeFile(t, "password", topSecret+"\n")
	enabled := true
	right := SASLConfig{Mechanism: "PLAIN", User: "plain", Password: topSecret}
	trusted := TLSConfig{CAFile: certificates.CAFile}
	for name, test := range map[string]struct {
		tls    TLSConfig
		sasl   SASLConfig
		want   string
		passes bool
	}{
		"plain":           {tls: trusted, sasl: right},
		"scram 256":       {tls: trusted, sasl: SASLConfig{Mechanism: "SCRAM-SHA-256", User: "scram256", PasswordFile: secretFile}},
		"scram 512":       {tls: trusted, sasl: SASLConfig{Mechanism: "SCRAM-SHA-512", User: "scram512", Password: topSecret}},
		"by name":         {tls: TLSConfig{CAFile: certificates.CAFile, ServerName: "localhost"}, sasl: right},
		"not verified":    {tls: TLSConfig{InsecureSkipVerify: true}, sasl: right},
		"wrong":           {tls: trusted, sasl: SASLConfig{Mechanism: "PLAIN", User: "plain", Password: "wrong-" + topSecret}, want: "it wants other settings in kafka.tls", passes: true},
		"wrong scram":     {tls: trusted, sasl: SASLConfig{Mechanism: "SCRAM-SHA-512", User: "scram512", Password: "wrong-" + topSecret}, want: "it wants other settings in kafka.tls", passes: true},
		"no authority":    {tls: TLSConfig{Enabled: &enabled}, sasl: right, want: "the broker's certificate is not trusted: see kafka.tls.ca_file"},
		"another name":    {tls: TLSConfig{CAFile: certificates.CAFile, ServerName: "elsewhere"}, sasl: SASLConfig{Mechanism: "PLAIN", User: "plain", Password: topSecret}, want: "kafka.tls.server_name"},
		"not a mechanism": {tls: trusted, sasl: SASLConfig{Mechanism: "OAUTHBEARER", Token: topSecret}, want: "the brokers do not know this mechanism: see kafka.sasl.mechanism"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := defaultConfig()
			config.Kafka.Brokers, config.Kafka.TLS, config.Kafka.SASL = cluster.ListenAddrs(), test.tls, test.sasl
			err := ping(t, config)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %s", err, test.want)
			}
			if strings.Contains(err.Error(), topSecret) {
				t.Errorf("the password is told: %v", err)
			}
			if curable(err) != test.passes {
				t.Errorf("it is waited for: %v, want %v: %v", !test.passes, test.passes, err)
			}
		})
	}
}

// refuseSASL makes the brokers answer as Kafka does to a wrong password; an
// in-process one hangs up.
func refuseSASL(cluster *kfake.Cluster) {
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := kmsg.NewPtrSASLAuthenticateResponse()
		response.Version = request.GetVersion()
		response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return response, nil, true
	})
}

func TestRunEndsOnAWrongKafkaPassword(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	cluster, certificates := secureKafka(t)
	refuseSASL(cluster)
	env := newTestEnv(t, "CLAIMQ_SCHEMA="+db.Schema, "CLAIMQ_KAFKA__SASL__PASSWORD=wrong-"+topSecret)
	file := writeFile(t, "claimq.yaml", "http: {listen: 'off'}\nlog: {level: debug}\ndatabase: {dsn: '"+db.DSN+"'}\nkafka:\n  brokers: ["+cluster.ListenAddrs()[0]+
		"]\n  tls: {ca_file: '"+certificates.CAFile+"'}\n  sasl: {mechanism: PLAIN, user: plain}\nqueues:\n"+queueYAML("q", sink(t, db), "a"))
	for _, got := range []string{env.refuse(ExitFailed, "config", "check", "--online", "-c", file), runOnce(t, env, ExitFailed, "-c", file)} {
		wantAll(t, got, "user or password is wrong: see kafka.sasl", "SASL_AUTHENTICATION_FAILED")
		if strings.Contains(got, topSecret) {
			t.Errorf("the password is told:\n%s", got)
		}
	}
}

// What kfake does not speak is looked at as it goes out.
func TestTokensAndKeysAreSent(t *testing.T) {
	t.Parallel()
	tokenFile := writeFile(t, "token", "token-1\n")
	oauth := &SASLConfig{Mechanism: "OAUTHBEARER", TokenFile: tokenFile, AuthorizationID: "me", Extensions: map[string]string{"cluster": "c"}}
	mechanism, err := oauth.mechanism()
	if err != nil {
		t.Fatal(err)
	}
	_, first, err := mechanism.Authenticate(t.Context(), "broker:9092")
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, string(first), "auth=Bearer token-1", "a=me", "cluster=c")
	if err := os.WriteFile(tokenFile, []byte("token-2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, first, err = mechanism.Authenticate(t.Context(), "broker:9092"); err != nil || !strings.Contains(string(first), "token-2") {
		t.Errorf("a new token is not read: %s, %v", first, err)
	}

	aws := &SASLConfig{Mechanism: "AWS_MSK_IAM", AccessKey: "AKIA", SecretKey: topSecret, SessionToken: "session"}
	if mechanism, err = aws.mechanism(); err != nil {
		t.Fatal(err)
	}
	_, first, err = mechanism.Authenticate(t.Context(), "b-1.x.kafka.eu-central-1.amazonaws.com:9098")
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, string(first), "AKIA", `"x-amz-security-token":"session"`, "eu-central-1")
	if strings.Contains(string(first), topSecret) {
		t.Error("the secret key itself is sent")
	}
}

func TestWhatIsMissingForAMechanismIsNamed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sasl SASLConfig
		want string
	}{
		"no user":        {SASLConfig{Mechanism: "PLAIN", Password: "p"}, "kafka.sasl.user: PLAIN needs it"},
		"no password":    {SASLConfig{Mechanism: "SCRAM-SHA-256", User: "u"}, "kafka.sasl.password: SCRAM-SHA-256 needs it"},
		"no token":       {SASLConfig{Mechanism: "OAUTHBEARER"}, "kafka.sasl.token: OAUTHBEARER needs it"},
		"no key":         {SASLConfig{Mechanism: "AWS_MSK_IAM"}, "kafka.sasl.access_key: AWS_MSK_IAM needs it"},
		"no mechanism":   {SASLConfig{User: "u"}, "kafka.sasl.mechanism: is missing: PLAIN, SCRAM"},
		"lower case":     {SASLConfig{Mechanism: "scram-sha-512", User: "u", Password: "p"}, `"scram-sha-512" is unknown; did you mean SCRAM-SHA-512?`},
		"kerberos":       {SASLConfig{Mechanism: "GSSAPI"}, "there is: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM"},
		"no such file":   {SASLConfig{Mechanism: "PLAIN", User: "u", PasswordFile: "none"}, "kafka.sasl.password_file: open none"},
		"file and value": {SASLConfig{Mechanism: "OAUTHBEARER", Token: "t", TokenFile: "f"}, "kafka.sasl.token_file: token is set too"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := test.sasl.mechanism(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

func TestTLSMistakesAreNamed(t *testing.T) {
	t.Parallel()
	certificates, err := localcert.Generate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	off := false
	for name, test := range map[string]struct {
		tls  TLSConfig
		want string
	}{
		"no authority": {TLSConfig{CAFile: "none.pem"}, "kafka.tls.ca_file: open none.pem"},
		"not PEM":      {TLSConfig{CAFile: writeFile(t, "ca.pem", "hello")}, "holds no certificate in PEM"},
		"half a pair":  {TLSConfig{CertFile: certificates.CertFile}, "cert_file and key_file belong together"},
		"a wrong pair": {TLSConfig{CertFile: certificates.CertFile, KeyFile: certificates.CertFile}, "kafka.tls.cert_file: "},
		"off and set":  {TLSConfig{Enabled: &off, CAFile: certificates.CAFile}, "kafka.tls.enabled: is false and other fields"},
	} {
		if _, err := test.tls.config(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
	if config, err := (&TLSConfig{}).config(); config != nil || err != nil {
		t.Errorf("without a field TLS is %v, %v", config, err)
	}
	if config, err := (&TLSConfig{CertFile: certificates.CertFile, KeyFile: certificates.KeyFile}).config(); err != nil || len(config.Certificates) != 1 {
		t.Errorf("a client's certificate: %v, %v", config, err)
	}
}

func TestBrokersMayLackTheirPort(t *testing.T) {
	t.Parallel()
	got, err := (&KafkaConfig{Brokers: Strings{"a", "b:1", "[::1]:2"}}).brokers()
	if diff := cmp.Diff([]string{"a:9092", "b:1", "[::1]:2"}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := (&KafkaConfig{Brokers: Strings{"a:b:c"}}).brokers(); err == nil {
		t.Error("a:b:c is accepted")
	}
}

func TestAnUnreachableBrokerIsWaitedFor(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	config := defaultConfig()
	config.Kafka.Brokers = Strings{address}
	err = ping(t, config)
	if err == nil || !curable(err) {
		t.Fatalf("%v", err)
	}
	wantAll(t, err.Error(), "no broker answers: see kafka.brokers", address)
}

func TestClientsSayWhoTheyAre(t *testing.T) {
	t.Parallel()
	config := defaultConfig()
	config.Kafka.Brokers = Strings{"a"}
	config.Kafka.ClientID = "shop"
	options, err := newTestEnvPointer(t).kafkaOptions(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if id := client.OptValue(kgo.ClientID); id != "shop" {
		t.Errorf("client id %v", id)
	}
}
