// Package keystry tells what an id rule would make of a topic as it is, before the
// rule is used: how many messages are distinct, repeats, conflicts, without an id.
// It is what `claimq keys try` does.
//
// The topic is read by partition and offset, in no consumer group, and nothing is
// written anywhere: not to Kafka, not to Postgres.
package keystry
