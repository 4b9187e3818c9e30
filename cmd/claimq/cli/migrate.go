package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/migrations"
)

func newMigrateCommand(env *Env) *cobra.Command {
	return group("migrate", "Bring the database's schema to this version, or look at how it stands",
		newMigrateUpCommand(env), newMigrateStatusCommand(env), newMigrateSQLCommand(env), newMigrateRolesCommand(env))
}

func newMigrateUpCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Apply the migrations that are missing",
		Long: `Applies the migrations that are missing, each in a transaction of its own, under a
lock: of ten that run it at once one migrates and nine find it done. It needs the
right to create the schema, and a direct connection (database.direct_dsn when
database.dsn leads to a pooler).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			applied, after, err := env.migrate(cmd.Context(), config)
			if err != nil {
				return err
			}
			for _, name := range applied {
				env.printf("applied %s\n", name)
			}
			env.printf("schema %s is at version %d\n", after.Schema, after.Current)
			return nil
		},
	}
}

// migrate brings the schema to this binary's version and tells which migrations it
// has applied itself, and how the schema stands now.
func (e *Env) migrate(ctx context.Context, config *Config) (applied []string, after migrations.Status, err error) {
	conn, err := e.connectDirect(ctx, config)
	if err != nil {
		return nil, after, err
	}
	defer closeConn(conn)
	options := migrations.Options{
		Schema:   config.schema(),
		Applying: func(name string) { applied = append(applied, name) },
	}
	if err = migrations.Up(ctx, conn, options); err != nil {
		return applied, after, err
	}
	after, err = migrations.Read(ctx, conn, options)
	return applied, after, err
}

// schemaStatus is what `migrate status --json` prints.
type schemaStatus struct {
	Schema  string   `json:"schema"`
	Current int      `json:"current"`
	Known   int      `json:"known"`
	Pending []string `json:"pending"`
}

func newMigrateStatusCommand(env *Env) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Tell the schema's version and what is missing; exit code 1 unless it is this binary's",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			conn, err := env.connectDirect(cmd.Context(), config)
			if err != nil {
				return err
			}
			defer closeConn(conn)
			status, err := migrations.Read(cmd.Context(), conn, migrations.Options{Schema: config.schema()})
			if err != nil {
				return err
			}
			if asJSON {
				shown := schemaStatus{Schema: status.Schema, Current: status.Current, Known: status.Known, Pending: append([]string{}, status.Pending...)}
				return errors.Join(env.printJSON(shown), status.Check())
			}
			env.printf("schema   %s\ncurrent  %d\nknown    %d\n", status.Schema, status.Current, status.Known)
			if len(status.Pending) > 0 {
				env.printf("pending  %s\n", strings.Join(status.Pending, ", "))
			}
			return status.Check()
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func newMigrateSQLCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "sql",
		Short: "Print the migrations as SQL, to read them or to apply them by hand",
		Long: `Prints all migrations as one script for psql, each in a transaction, with the
table that counts them. It begins with the first one: for an empty database.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			script, err := migrations.Script(migrations.Options{Schema: config.schema()})
			if err != nil {
				return configError(err)
			}
			env.printf("%s", script)
			return nil
		},
	}
}

func newMigrateRolesCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "roles",
		Short: "Print the script that makes the roles: owner, worker, operator, reader",
		Long: `Prints a script for psql, to be run by a superuser or an owner of the database. It
makes the group roles NAME_owner, NAME_worker, NAME_operator and NAME_reader, NAME
being the schema's, with the least that each needs, and may be run again after
every migration. Who logs in is granted one of them:

  grant claimq_worker to orders_service;`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			script, err := migrations.Roles(migrations.Options{Schema: config.schema()})
			if err != nil {
				return configError(err)
			}
			env.printf("%s", script)
			return nil
		},
	}
}
