package localkafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Mechanism is a SASL mechanism that a broker of this package offers.
type Mechanism string

// The mechanisms that need nothing but the broker.
const (
	Plain       Mechanism = "PLAIN"
	ScramSHA256 Mechanism = "SCRAM-SHA-256"
	ScramSHA512 Mechanism = "SCRAM-SHA-512"
)

// Config says what to start. The zero value is one broker in a temporary
// directory, on free ports, without security.
type Config struct {
	// Brokers is how many to start, 1 to 9. Default 1. With three or more,
	// topics have three replicas, two of which must be in sync.
	Brokers int

	// Dir keeps the brokers' files; it must be new or empty, and Stop leaves
	// it in place. Empty: a temporary directory that Stop removes.
	Dir string

	// TLS and SASL add a second listener to each broker; clients reach it at
	// Cluster.SecureBrokers. The plain listener stays.
	//
	// TLS encrypts it, under a certificate generated for 127.0.0.1 and
	// localhost; Cluster.CAFile names the authority to trust.
	TLS bool
	// SASL asks clients of the second listener for one of these mechanisms.
	SASL []Mechanism
	// Users are the names and passwords for SASL: letters, digits and any of
	// "-_." only.
	Users map[string]string

	// Settings are lines of server.properties; they win over all that the
	// package sets itself.
	Settings map[string]string

	// HeapMB is each broker's largest heap. Default 512 for one broker, else 256.
	HeapMB int

	// JVM are more options for java.
	JVM []string

	// LogLevel of the brokers: ERROR, WARN, INFO, DEBUG. Default WARN.
	LogLevel string

	// Jars is the directory of Kafka's jars. Default: [Jars].
	Jars string

	// Logf is told what takes long (a download). Default: nothing is said.
	Logf func(format string, args ...any)
}

func (c Config) withDefaults() (Config, error) {
	if c.Brokers == 0 {
		c.Brokers = 1
	}
	if c.Brokers < 1 || c.Brokers > 9 {
		return c, fmt.Errorf("Brokers is %d; it must be between 1 and 9", c.Brokers)
	}
	if c.HeapMB == 0 {
		c.HeapMB = 256
		if c.Brokers == 1 {
			c.HeapMB = 512
		}
	}
	if c.LogLevel == "" {
		c.LogLevel = "WARN"
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	if len(c.SASL) > 0 && len(c.Users) == 0 {
		return c, errors.New("SASL is set but Users is empty: nobody could log in")
	}
	for name, password := range c.Users {
		if !plainWord(name) || !plainWord(password) {
			return c, fmt.Errorf("Users: name and password of %q must be of letters, digits and any of \"-_.\"", name)
		}
	}
	return c, nil
}

// plainWord keeps names and passwords to what needs no quoting in Kafka's three
// different syntaxes for them.
func plainWord(word string) bool {
	return word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

func (c Config) secure() bool { return c.TLS || len(c.SASL) > 0 }

func (c Config) secureProtocol() string {
	switch {
	case c.TLS && len(c.SASL) > 0:
		return "SASL_SSL"
	case c.TLS:
		return "SSL"
	default:
		return "SASL_PLAINTEXT"
	}
}

// extra are the lines of server.properties that only some brokers have.
func (c Config) extra(keystore string) []string {
	var lines []string
	if c.TLS {
		lines = append(lines,
			"listener.name.secure.ssl.keystore.type=PEM",
			"listener.name.secure.ssl.keystore.location="+keystore)
	}
	if len(c.SASL) > 0 {
		names := make([]string, len(c.SASL))
		for i, mechanism := range c.SASL {
			names[i] = string(mechanism)
			lines = append(lines, "listener.name.secure."+strings.ToLower(names[i])+".sasl.jaas.config="+c.jaas(mechanism))
		}
		lines = append(lines, "listener.name.secure.sasl.enabled.mechanisms="+strings.Join(names, ","))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Settings)) {
		lines = append(lines, key+"="+strings.ReplaceAll(c.Settings[key], `\`, `\\`))
	}
	return lines
}

// jaas says how a listener checks passwords: PLAIN has them in the
// configuration, SCRAM in the cluster's metadata (see scramArguments).
func (c Config) jaas(mechanism Mechanism) string {
	if mechanism != Plain {
		return "org.apache.kafka.common.security.scram.ScramLoginModule required;"
	}
	var users strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.Users)) {
		fmt.Fprintf(&users, ` user_%s="%s"`, name, c.Users[name])
	}
	return "org.apache.kafka.common.security.plain.PlainLoginModule required" + users.String() + ";"
}

// scramArguments put the users into a new cluster's metadata when it is formatted.
func (c Config) scramArguments() []string {
	var arguments []string
	for _, mechanism := range c.SASL {
		if mechanism == Plain {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(c.Users)) {
			arguments = append(arguments, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, name, c.Users[name]))
		}
	}
	return arguments
}
