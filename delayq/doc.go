// Package delayq keeps messages that wait: for their next attempt, for one of the
// same order key, or for their time.
package delayq
