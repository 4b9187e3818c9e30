package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/internal/nearest"
)

// globalFlags are those of every command. They rule over the environment, which
// rules over the configuration file.
type globalFlags struct {
	config    string
	dsn       string
	schema    string
	brokers   []string
	logLevel  string
	logFormat string
}

// Run runs claimq with the arguments after its name and returns the exit code.
// It returns when the command has ended: for `claimq run` that is after a signal,
// after ctx has ended, or when a queue cannot go on.
func Run(ctx context.Context, args []string, env Env) int {
	root := newRoot(&env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !env.started && exitCode(err) == ExitFailed {
		// Cobra's own errors: unknown commands, flags, numbers of arguments.
		err = exitWith(ExitUsage, err)
	}
	code := exitCode(err)
	env.report(err)
	return code
}

func newRoot(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "claimq",
		Short: "Kafka into Postgres, each message's effect once",
		Long: `claimq reads Kafka, claims each message's id in the Postgres transaction that
holds the business write, and so makes each effect once, whatever is redelivered.

Settings come from flags, then the environment (CLAIMQ_…), then the file given
with --config; docs/configuration.md lists them all.

Exit codes: 0 done, 1 failed, 2 done in part, 3 nothing matched, 64 wrong command
line, 78 configuration refused.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			env.started = true
		},
	}
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	flags := root.PersistentFlags()
	flags.StringVarP(&env.flags.config, "config", "c", "", "configuration `file` (YAML); also CLAIMQ_CONFIG")
	flags.StringVar(&env.flags.dsn, "dsn", "", "`address` of the database, postgres://user@host/name; also CLAIMQ_DSN")
	flags.StringVar(&env.flags.schema, "schema", "", "`name` of the schema with claimq's tables (default claimq); also CLAIMQ_SCHEMA")
	flags.StringSliceVar(&env.flags.brokers, "brokers", nil, "Kafka `brokers`, host:port with commas between; also CLAIMQ_BROKERS")
	flags.StringVar(&env.flags.logLevel, "log-level", "", "debug, info, warn or error (default info)")
	flags.StringVar(&env.flags.logFormat, "log-format", "", "text or json (default text)")
	root.AddCommand(commands(env)...)
	return root
}

// group is a command that only holds others. Without one of them, or with a name
// that is none, it is a wrong command line: cobra itself would print help and
// report success.
func group(use, short string, members ...*cobra.Command) *cobra.Command {
	names := make([]string, len(members))
	for i, member := range members {
		names[i] = member.Name()
	}
	command := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			all := strings.Join(names, ", ")
			if len(args) == 0 {
				return usageError("%s needs one of: %s", cmd.CommandPath(), all)
			}
			return usageError("%s has no %q; did you mean %q? there is: %s", cmd.CommandPath(), args[0], nearest.Of(args[0], names), all)
		},
	}
	command.AddCommand(members...)
	return command
}

// report tells an error on Stderr, one line each where several are joined.
func (e *Env) report(err error) {
	if err == nil {
		return
	}
	if exit, ok := err.(*exitError); ok && exit.err == nil { //nolint:errorlint // only the outermost says that all is told
		return
	}
	for line := range strings.Lines(err.Error()) {
		_, _ = fmt.Fprintf(e.Stderr, "claimq: %s\n", strings.TrimRight(line, "\n"))
	}
}
