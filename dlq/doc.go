// Package dlq keeps dead letters: messages for which no attempt is made until
// someone decides.
package dlq
