package migrations

import (
	"fmt"
	"strings"
)

// Roles returns the script that makes the group roles NAME_owner, NAME_worker,
// NAME_operator and NAME_reader, NAME being the schema's, with the least that each
// needs. It is for a superuser, or the database's owner with CREATEROLE; it may be
// run before the migrations and is run again after each, since it grants what is
// there. It holds several statements and runs in one transaction or outside any.
func Roles(o Options) (string, error) {
	if err := checkSchema(o.schema()); err != nil {
		return "", err
	}
	text, err := files.ReadFile("roles.sql")
	if err != nil {
		return "", fmt.Errorf("read the script of the roles: %w", err)
	}
	return fill("roles.sql", string(text), o.schema())
}

// Script returns all migrations as one script for an empty database, each in a
// transaction that also counts it, so that Up finds it done afterwards.
func Script(o Options) (string, error) {
	list, err := SQL(o)
	if err != nil {
		return "", err
	}
	versions := quote(o.schema()) + ".schema_version"
	var script strings.Builder
	fmt.Fprintf(&script, "-- claimq, schema %s, versions 1 to %d: for a database that has none of it.\n\n", o.schema(), len(list))
	fmt.Fprintf(&script, "begin;\ncreate schema if not exists %s;\ncreate table %s (version int4 not null);\ninsert into %s values (0);\ncommit;\n",
		quote(o.schema()), versions, versions)
	for i, step := range list {
		fmt.Fprintf(&script, "\n-- ---- %s\n\nbegin;\n%s\nupdate %s set version = %d;\ncommit;\n", step.Name, strings.TrimRight(step.SQL, "\n"), versions, i+1)
	}
	return script.String(), nil
}
