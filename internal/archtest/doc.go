// Package archtest holds the tests of the tree's shape: which way imports point,
// which packages may carry test libraries, how long a file may get. They ask the go
// command and need nothing else, so they run wherever the other tests run; the
// linter has the same import rules, for an editor to show while one types.
package archtest
