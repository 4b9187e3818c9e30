package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/claimsimport"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/queuelist"
)

// progressEvery is after how many lines an import says how far it is.
const progressEvery = 100_000

func newClaimsImportCommand(env *Env) *cobra.Command {
	var scope scopeFlags
	var format string
	var chunk int
	var newQueue, asJSON bool
	command := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Take over ids that an older consumer has handled",
		Long: `Claims each id of a list, so that messages with them are repeats from the first one
on. A line is an id, or a JSON object:

  {"id": "4711", "tenant": "acme", "operation": "ship", "at": "2026-01-31T12:00:00Z"}

Only id is needed. at is when the message was sent, by its own clock: how long the
id is remembered counts from there too; without it, from now. fingerprint and
fingerprint_version, as "claims show --json" prints them, make another content
under the id a conflict; without them nothing conflicts.

Lines are claimed 1,000 in a transaction. An id that is known already is no error,
so a list that stopped in the middle is simply imported again. A wrong line stops
the import and is named; exit code 2 then says that lines before it are done.`,
		Example: `  claimq claims import --queue orders done-ids.txt
  psql -Atc "select key from processed" | claimq claims import --queue orders -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if chunk < 1 || chunk > 10_000 {
				return usageError("--chunk is %d: it must be between 1 and 10000", chunk)
			}
			known := map[string]claimsimport.Format{"auto": claimsimport.Auto, "ids": claimsimport.IDs, "json": claimsimport.JSON}
			lines, ok := known[format]
			if !ok {
				return usageError("--format %q: it must be auto, ids or json", format)
			}
			tenant, operation := scope.scope()
			o := claimsimport.Options{Queue: scope.queue, Tenant: tenant, Operation: operation, Format: lines, Chunk: chunk}
			report, err := env.importClaims(cmd, args[0], o, newQueue)
			if err != nil && report.Lines > 0 {
				err = exitWith(ExitPartial, err)
			}
			if err != nil && report.Lines == 0 {
				return err
			}
			return errors.Join(env.printImported(report, o.Queue, asJSON), err)
		},
	}
	scope.add(command)
	flags := command.Flags()
	flags.StringVar(&format, "format", "auto", "how lines are written: auto (JSON when the first begins with {), ids or json")
	flags.IntVar(&chunk, "chunk", 1000, "how many `lines` are claimed in one transaction")
	flags.BoolVar(&newQueue, "new-queue", false, "the queue is not known yet: no worker has started it")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func (e *Env) importClaims(cmd *cobra.Command, name string, o claimsimport.Options, newQueue bool) (claimsimport.Report, error) {
	var none claimsimport.Report
	config, err := e.load()
	if err != nil {
		return none, err
	}
	list, err := e.openList(name)
	if err != nil {
		return none, err
	}
	defer list.Close()
	if o.Queue == "" {
		return none, usageError("--queue is missing: say for which queue the ids are done")
	}
	pool, err := e.openPool(cmd.Context(), config)
	if err != nil {
		return none, err
	}
	defer pool.Close()
	settings, configured := config.Queues[o.Queue]
	if !configured && !newQueue {
		// A mistyped name would make a queue that nobody runs.
		if _, err := queuelist.Find(cmd.Context(), pool, pgschema.Schema(config.schema()), o.Queue); err != nil {
			return none, exitWith(ExitNothing, fmt.Errorf("%w. For a queue that no worker has started yet, say --new-queue or give its configuration with --config", err))
		}
	}
	said := 0
	o.Progress = func(r claimsimport.Report) {
		if r.Lines-said >= progressEvery {
			said = r.Lines
			_, _ = fmt.Fprintf(e.Stderr, "%d lines: %d new, %d already claimed\n", r.Lines, r.New, r.Already)
		}
	}
	store := dedup.New(dedup.Config{Schema: config.schema(), HideIDs: settings.HideIDs})
	return claimsimport.Import(cmd.Context(), pool, store, list, o)
}

// openList opens a file, or Stdin for "-".
func (e *Env) openList(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(e.Stdin), nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, usageError("%v", err)
	}
	return file, nil
}

func (e *Env) printImported(report claimsimport.Report, queue string, asJSON bool) error {
	if asJSON {
		return e.printJSON(report)
	}
	e.printf("queue %s: %s claimed now, %s already", queue, counted(report.New, "id is", "ids are"), counted(report.Already, "was", "were"))
	if report.Conflicts > 0 {
		e.printf(", %s claimed with another fingerprint and left alone", counted(report.Conflicts, "is", "are"))
	}
	e.printf("; all up to line %d is done\n", report.Lines)
	return nil
}
