package migrations

import "github.com/claimq/claimq/internal/sqlstate"

// isDuplicateSchema reports whether CREATE SCHEMA IF NOT EXISTS lost a race: two
// sessions that both found nothing are answered with one schema and one error,
// from the command (42P06) or from the catalogue's unique index (23505).
func isDuplicateSchema(err error) bool {
	switch sqlstate.Code(err) {
	case sqlstate.DuplicateSchema, sqlstate.UniqueViolation:
		return true
	}
	return false
}
