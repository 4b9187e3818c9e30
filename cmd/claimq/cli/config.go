package cli

// Config is claimq's configuration, as docs/configuration.md shows it: the
// comments of these types are what stands there. A field that is not set has its
// default, which is 0, empty or false unless its comment says another.
type Config struct {
	// Where Postgres is, and how it is reached.
	Database DatabaseConfig `koanf:"database"`
	// Where Kafka is, and how it is reached.
	Kafka KafkaConfig `koanf:"kafka"`
	// What `claimq run` serves over HTTP.
	HTTP HTTPConfig `koanf:"http"`
	// What is logged, on standard error.
	Log LogConfig `koanf:"log"`
	// The worker that publishes effects and dead letters from the outbox.
	Relay RelayConfig `koanf:"relay"`
	// The queues, each under its name. A name is immutable and the root of the dedup
	// scope: a queue under another name is another queue, to which every message is new.
	Queues map[string]QueueConfig `koanf:"queues"`

	// file is where the configuration was read, "" without a file; lines tells places in it.
	file  string
	lines yamlLines
}

// DatabaseConfig is the section "database".
type DatabaseConfig struct {
	// The address: postgres://user@host:5432/name?sslmode=verify-full, or keywords and
	// values. It must lead to the writer, not to a replica. Options of libpq for TLS
	// (sslmode, sslrootcert, sslcert, sslkey) work, and several hosts with
	// target_session_attrs=read-write.
	DSN Secret `koanf:"dsn"`
	// A file with the address, instead of dsn.
	DSNFile string `koanf:"dsn_file"`
	// The password, when it is not in the address; it needs no escaping here.
	Password Secret `koanf:"password"`
	// A file with the password, read again for every new connection, so that a
	// password can be changed without a restart. Instead of password.
	PasswordFile string `koanf:"password_file"`
	// The address for migrations when dsn leads to a pooler: a direct connection.
	// Default: dsn.
	DirectDSN Secret `koanf:"direct_dsn"`
	// A file with that address, instead of direct_dsn.
	DirectDSNFile string `koanf:"direct_dsn_file"`
	// The schema with claimq's tables. Default: claimq.
	Schema string `koanf:"schema"`
	// The most connections of one process. Default: what the queues that run need,
	// their concurrency and six each, and six.
	MaxConnections int `koanf:"max_connections"`
	// The address leads to PgBouncer, or another pooler, in transaction mode: queries
	// then use no named prepared statements (pgx's cache_describe). Without it such a
	// pooler is found at start and refused.
	Pooler bool `koanf:"pooler"`
}

// KafkaConfig is the section "kafka".
type KafkaConfig struct {
	// Brokers to begin with, host:port each; the others are found through them.
	Brokers Strings `koanf:"brokers"`
	// The name that brokers log and set quotas for. Default: claimq.
	ClientID string `koanf:"client_id"`
	// TLS towards the brokers.
	TLS TLSConfig `koanf:"tls"`
	// Who claimq is to the brokers.
	SASL SASLConfig `koanf:"sasl"`
}

// TLSConfig is a section "tls".
type TLSConfig struct {
	// Use TLS. Default: true when another field of this section is set.
	Enabled *bool `koanf:"enabled"`
	// Certificates of the authorities to trust, PEM. Default: the system's.
	CAFile string `koanf:"ca_file"`
	// The client's certificate, PEM, for brokers that ask for one.
	CertFile string `koanf:"cert_file"`
	// The key of that certificate, PEM.
	KeyFile string `koanf:"key_file"`
	// The name to look for in the brokers' certificates. Default: each broker's host.
	ServerName string `koanf:"server_name"`
	// Accept any certificate. Whoever answers is then believed: for trials only.
	InsecureSkipVerify bool `koanf:"insecure_skip_verify"`
}

// SASLConfig is a section "sasl".
type SASLConfig struct {
	// PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM. Default: none.
	Mechanism string `koanf:"mechanism"`
	// The user for PLAIN and SCRAM.
	User string `koanf:"user"`
	// The password for PLAIN and SCRAM.
	Password Secret `koanf:"password"`
	// A file with the password, read again at every authentication. Instead of password.
	PasswordFile string `koanf:"password_file"`
	// The authorization id, where it differs from who authenticates: PLAIN, SCRAM and
	// OAUTHBEARER.
	AuthorizationID string `koanf:"authorization_id"`
	// SCRAM: user and password are those of a delegation token.
	DelegationToken bool `koanf:"delegation_token"`
	// The token for OAUTHBEARER.
	Token Secret `koanf:"token"`
	// A file with the token, read again at every authentication. Instead of token.
	TokenFile string `koanf:"token_file"`
	// Extensions for OAUTHBEARER, name to value.
	Extensions map[string]string `koanf:"extensions"`
	// The access key for AWS_MSK_IAM.
	AccessKey string `koanf:"access_key"`
	// The secret key for AWS_MSK_IAM.
	SecretKey Secret `koanf:"secret_key"`
	// A file with the secret key, read again at every authentication. Instead of secret_key.
	SecretKeyFile string `koanf:"secret_key_file"`
	// The session token for AWS_MSK_IAM, with temporary keys.
	SessionToken Secret `koanf:"session_token"`
	// A file with the session token, read again at every authentication. Instead of
	// session_token.
	SessionTokenFile string `koanf:"session_token_file"`
}

// HTTPConfig is the section "http".
type HTTPConfig struct {
	// Where /metrics, /livez and /readyz are served; "off" serves nothing. They tell
	// names of queues and topics and need no login, so the default is for this machine
	// only: in a container use :9467. Default: 127.0.0.1:9467.
	Listen string `koanf:"listen"`
}

// LogConfig is the section "log".
type LogConfig struct {
	// debug, info, warn or error. Default: info.
	Level string `koanf:"level"`
	// text or json. Default: text.
	Format string `koanf:"format"`
}

// RelayConfig is the section "relay".
type RelayConfig struct {
	// Publish from this process. Each row is published once whatever the number of
	// processes; without any relay, effects stay in the outbox. Default: true.
	Enabled bool `koanf:"enabled"`
	// How many parts the outbox is published in side by side, each by one process at a
	// time; a key belongs to one. Default: 1.
	Slices int `koanf:"slices"`
}
