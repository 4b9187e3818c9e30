// Package pgschema puts a schema's name into claimq's SQL.
//
// Every statement is one static text that names its tables as claimq.table, so
// that it can be read, searched for and run by hand. A Schema renders it once, at
// construction of whatever owns the statement, never while it runs.
package pgschema

import (
	"regexp"

	"github.com/jackc/pgx/v5"
)

// Default is the schema's name unless told otherwise.
const Default = "claimq"

// Schema is a schema's name, unquoted. Empty means Default.
type Schema string

// Name returns the name, unquoted.
func (s Schema) Name() string {
	if s == "" {
		return Default
	}
	return string(s)
}

// Quoted returns the name as an SQL identifier.
func (s Schema) Quoted() string { return pgx.Identifier{s.Name()}.Sanitize() }

var qualified = regexp.MustCompile(`\bclaimq\.`)

// SQL returns text with every claimq. replaced by the schema's quoted name.
func (s Schema) SQL(text string) string {
	return qualified.ReplaceAllLiteralString(text, s.Quoted()+".")
}
