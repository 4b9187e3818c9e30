// Package claimsimport claims ids that an older consumer has already handled, so
// that claimq finds them as repeats from its first message on. It is what `claimq
// claims import` does.
package claimsimport
