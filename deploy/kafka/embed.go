// Package kafka holds the files that a real Kafka is started from, for
// internal/localkafka.
package kafka

import _ "embed"

// POM is the Maven project that fetches the broker's jars.
//
//go:embed pom.xml
var POM []byte

// ServerProperties is the text/template of a broker's configuration.
//
//go:embed server.properties.tmpl
var ServerProperties string

// Version is the Kafka version that POM names.
const Version = "4.4.0"
