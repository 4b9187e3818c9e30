// Package pgarray sends Go slices as Postgres arrays without an allocation or a
// look at reflection for each element.
//
// pgx encodes a slice element by element, boxing each in an interface, and sends
// types like uuid.UUID through database/sql's Valuer as text that it then parses.
// On claimq's hot path, thousands of elements a batch, that was two thirds of the
// client's CPU time. The types here hand pgx a pointer to each element that has the
// one method its codec looks for.
package pgarray

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// dimensions of a one-dimensional array. An empty slice is '{}'; a nil one is null,
// as with pgx's own, and unnest makes no rows of either.
func dimensions(n int) []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(n), LowerBound: 1}} //nolint:gosec // far below 2^31
}

// UUIDs is a uuid[].
type UUIDs []uuid.UUID

type uuidElement uuid.UUID

// UUIDValue is what pgx's codec asks for.
func (e *uuidElement) UUIDValue() (pgtype.UUID, error) {
	return pgtype.UUID{Bytes: *e, Valid: true}, nil
}

// Dimensions, Index and IndexType make it a pgtype.ArrayGetter.
func (a UUIDs) Dimensions() []pgtype.ArrayDimension { return dimensions(len(a)) }

// Index returns element i.
func (a UUIDs) Index(i int) any { return (*uuidElement)(&a[i]) }

// IndexType returns a value of the elements' type.
func (a UUIDs) IndexType() any { return (*uuidElement)(nil) }

// Int2s is an int2[].
type Int2s []int16

type int2Element int16

// Int64Value is what pgx's codec asks for.
func (e *int2Element) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*e), Valid: true}, nil
}

// Dimensions, Index and IndexType make it a pgtype.ArrayGetter.
func (a Int2s) Dimensions() []pgtype.ArrayDimension { return dimensions(len(a)) }

// Index returns element i.
func (a Int2s) Index(i int) any { return (*int2Element)(&a[i]) }

// IndexType returns a value of the elements' type.
func (a Int2s) IndexType() any { return (*int2Element)(nil) }

// Int4s is an int4[].
type Int4s []int32

type int4Element int32

// Int64Value is what pgx's codec asks for.
func (e *int4Element) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*e), Valid: true}, nil
}

// Dimensions, Index and IndexType make it a pgtype.ArrayGetter.
func (a Int4s) Dimensions() []pgtype.ArrayDimension { return dimensions(len(a)) }

// Index returns element i.
func (a Int4s) Index(i int) any { return (*int4Element)(&a[i]) }

// IndexType returns a value of the elements' type.
func (a Int4s) IndexType() any { return (*int4Element)(nil) }

// Int8s is an int8[].
type Int8s []int64

type int8Element int64

// Int64Value is what pgx's codec asks for.
func (e *int8Element) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*e), Valid: true}, nil
}

// Dimensions, Index and IndexType make it a pgtype.ArrayGetter.
func (a Int8s) Dimensions() []pgtype.ArrayDimension { return dimensions(len(a)) }

// Index returns element i.
func (a Int8s) Index(i int) any { return (*int8Element)(&a[i]) }

// IndexType returns a value of the elements' type.
func (a Int8s) IndexType() any { return (*int8Element)(nil) }

// Texts is a text[]. The strings must be storable: UTF-8 without NUL.
type Texts []string

type textElement string

// TextValue is what pgx's codec asks for.
func (e *textElement) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: string(*e), Valid: true}, nil
}

// Dimensions, Index and IndexType make it a pgtype.ArrayGetter.
func (a Texts) Dimensions() []pgtype.ArrayDimension { return dimensions(len(a)) }

// Index returns element i.
func (a Texts) Index(i int) any { return (*textElement)(&a[i]) }

// IndexType returns a value of the elements' type.
func (a Texts) IndexType() any { return (*textElement)(nil) }

// Times is a timestamptz[].
type Times []time.Time

type timeElement time.Time

// TimestamptzValue is what pgx's codec asks for.
func (e *timeElement) TimestamptzValue() (pgtype.Timestamptz, error) {
	return pgtype.Timestamptz{Time: time.Time(*e), Valid: true}, nil
}

// Dimensions, Index and IndexType make it a pgtype.ArrayGetter.
func (a Times) Dimensions() []pgtype.ArrayDimension { return dimensions(len(a)) }

// Index returns element i.
func (a Times) Index(i int) any { return (*timeElement)(&a[i]) }

// IndexType returns a value of the elements' type.
func (a Times) IndexType() any { return (*timeElement)(nil) }
