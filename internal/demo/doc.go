// Package demo is `claimq demo`: it sends orders with everything that goes wrong
// with orders, lets two consumers work on them, kills one of the two in the middle
// of a batch, and then proves from the database and the topics alone that each
// order took effect once.
//
//	plan      which records are sent, and what has to become of each   (plan.go)
//	stack     a Kafka and a Postgres, started here or given            (stack.go)
//	run       send, consume, join, kill, wait                          (run.go)
//	evidence  what the tables and topics hold afterwards               (evidence.go)
//	account   plan and evidence compared                               (account.go)
//
// The first consumer runs in this process. The second is a child process of the
// same binary, because a consumer that shares a process cannot be killed as a
// crash kills: with its transaction open and nothing tidied up.
//
// Nothing in the account is taken from a counter of the consumers: a consumer that
// is wrong about what it did would then testify for itself.
package demo
