// Package migrations holds claimq's schema as numbered SQL and applies it.
//
// Migrations go forward only. Each one runs in a transaction of its own and is
// safe beside workers of the version before it: it adds tables, columns with
// defaults, and functions under new names, and takes nothing away that a running
// worker still uses.
package migrations

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"text/template"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

//go:embed *.sql
var files embed.FS

// DefaultSchema is the schema that claimq's tables live in unless told otherwise.
const DefaultSchema = "claimq"

// Options say where the schema goes. The zero value is ready to use.
type Options struct {
	// Schema is the name of the schema, unquoted. Empty means DefaultSchema. It is
	// created when it does not exist.
	Schema string
	// Applying, when set, is called by Up with the name of each migration that it is
	// about to apply: not for those which another process was just applying.
	Applying func(name string)
}

// Status is how a database stands to this binary.
type Status struct {
	// Schema is the schema's name, unquoted.
	Schema string
	// Current is the version found in the database; 0 when there is no schema.
	Current int
	// Known is the newest version that this binary has.
	Known int
	// Pending names the migrations between the two, in order.
	Pending []string
}

// A NewerSchemaError says that the database has been migrated by a newer claimq
// than this one. Older workers go on running beside it; migrating or starting
// with the older binary is refused.
type NewerSchemaError struct {
	Schema         string
	Current, Known int
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("schema %q is at version %d and this claimq knows versions up to %d: start a newer claimq", e.Schema, e.Current, e.Known)
}

// A MissingSchemaError says that the database has no claimq schema, or one that
// lacks migrations.
type MissingSchemaError struct {
	Schema         string
	Current, Known int
}

func (e *MissingSchemaError) Error() string {
	if e.Current == 0 {
		return fmt.Sprintf("the database has no claimq schema %q: run `claimq migrate up`", e.Schema)
	}
	return fmt.Sprintf("schema %q is at version %d and version %d is needed: run `claimq migrate up`", e.Schema, e.Current, e.Known)
}

// Up brings the schema to the newest version. It holds a session advisory lock
// while it works, so of ten workers that start at once one migrates and nine find
// it done; conn must therefore be a direct connection and not one through a
// transaction pooler. A database that is newer than this binary is refused with a
// *NewerSchemaError.
func Up(ctx context.Context, conn *pgx.Conn, o Options) error {
	status, err := Read(ctx, conn, o)
	if err != nil {
		return err
	}
	if status.Current > status.Known {
		return &NewerSchemaError{Schema: status.Schema, Current: status.Current, Known: status.Known}
	}
	if len(status.Pending) == 0 {
		return nil
	}
	if err := createSchema(ctx, conn, status.Schema); err != nil {
		return err
	}
	migrator, err := migrate.NewMigrator(ctx, conn, quote(status.Schema)+".schema_version")
	if err != nil {
		return fmt.Errorf("schema %q: %w", status.Schema, err)
	}
	list, err := render(status.Schema)
	if err != nil {
		return err
	}
	for _, m := range list {
		migrator.AppendMigration(m.Name, m.SQL, "")
	}
	if o.Applying != nil {
		migrator.OnStart = func(_ int32, name, _, _ string) { o.Applying(name) }
	}
	if err := migrator.Migrate(ctx); err != nil {
		if failed, ok := errors.AsType[migrate.MigrationPgError](err); ok {
			return fmt.Errorf("schema %q: migration %s: %w", status.Schema, failed.MigrationName, failed.PgError)
		}
		return fmt.Errorf("schema %q: %w", status.Schema, err)
	}
	return nil
}

// createSchema makes the schema unless it is there. It looks first: CREATE SCHEMA
// IF NOT EXISTS asks for the right to create schemas before it looks, and the
// owner role, whose schema the script of the roles has made, has no such right.
func createSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	var exists bool
	if err := conn.QueryRow(ctx, "select to_regnamespace($1) is not null", quote(schema)).Scan(&exists); err != nil {
		return fmt.Errorf("look for schema %q: %w", schema, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "create schema if not exists "+quote(schema)); err != nil && !isDuplicateSchema(err) {
		return fmt.Errorf("create schema %q: %w", schema, err)
	}
	return nil
}

// Read tells how the database stands to this binary. It writes nothing.
func Read(ctx context.Context, conn interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, o Options,
) (Status, error) {
	list, err := render(o.schema())
	if err != nil {
		return Status{}, err
	}
	status := Status{Schema: o.schema(), Known: len(list)}
	var exists bool
	table := quote(status.Schema) + ".schema_version"
	if err := conn.QueryRow(ctx, "select to_regclass($1) is not null", table).Scan(&exists); err != nil {
		return Status{}, fmt.Errorf("read the version of schema %q: %w", status.Schema, err)
	}
	if exists {
		if err := conn.QueryRow(ctx, "select version from "+table).Scan(&status.Current); err != nil {
			return Status{}, fmt.Errorf("read the version of schema %q: %w", status.Schema, err)
		}
	}
	for _, m := range list[min(status.Current, len(list)):] {
		status.Pending = append(status.Pending, m.Name)
	}
	return status, nil
}

// Check returns nil when the database has exactly what this binary needs or
// newer migrations are not required; otherwise a *MissingSchemaError or a
// *NewerSchemaError.
func (s Status) Check() error {
	switch {
	case s.Current < s.Known:
		return &MissingSchemaError{Schema: s.Schema, Current: s.Current, Known: s.Known}
	case s.Current > s.Known:
		return &NewerSchemaError{Schema: s.Schema, Current: s.Current, Known: s.Known}
	}
	return nil
}

// A Migration is one numbered step, with the schema's name filled in.
type Migration struct {
	// Name is the file's name, for example 001_base.sql.
	Name string
	// SQL is what is run, in one transaction.
	SQL string
}

// SQL returns all migrations in order, for people who apply them by hand or read
// them first.
func SQL(o Options) ([]Migration, error) { return render(o.schema()) }

func (o Options) schema() string {
	if o.Schema == "" {
		return DefaultSchema
	}
	return o.Schema
}

func render(schema string) ([]Migration, error) {
	if err := checkSchema(schema); err != nil {
		return nil, err
	}
	names, err := fs.Glob(files, "[0-9]*.sql")
	if err != nil {
		return nil, fmt.Errorf("list the migrations: %w", err)
	}
	slices.Sort(names)
	list := make([]Migration, 0, len(names))
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		sql, err := fill(name, string(text), schema)
		if err != nil {
			return nil, err
		}
		list = append(list, Migration{Name: name, SQL: sql})
	}
	return list, nil
}

// schemaName is narrow on purpose: the name also stands inside string literals of
// the functions' bodies, and operators type it into psql.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,49}$`)

func checkSchema(schema string) error {
	if !schemaName.MatchString(schema) {
		return fmt.Errorf("schema %q: the name must be lower-case letters, digits and underscores, not start with a digit, and have at most 50 characters", schema)
	}
	return nil
}

// fill puts the schema's name into a text: {{.schema}} quoted as an identifier,
// {{.schema_text}} for the inside of a string literal.
func fill(name, text, schema string) (string, error) {
	tmpl, err := template.New(name).Option("missingkey=error").Parse(text)
	if err != nil {
		return "", fmt.Errorf("migration %s: %w", name, err)
	}
	var out bytes.Buffer
	err = tmpl.Execute(&out, map[string]string{
		"schema":      quote(schema),
		"schema_text": schema,
	})
	if err != nil {
		return "", fmt.Errorf("migration %s: %w", name, err)
	}
	return out.String(), nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
