// Package e2e holds the tests that need whole servers of their own: failovers,
// processes that are frozen and killed, the commands against a real Kafka. It has
// no code that anything imports.
package e2e
