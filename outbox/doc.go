// Package outbox publishes records to Kafka exactly when the transaction that
// made them has committed.
package outbox
