package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/queuelist"
)

func newClaimsCommand(env *Env) *cobra.Command {
	return group("claims", "Look up ids, see how far back they go, forget them, or take them over from an older consumer",
		newClaimsShowCommand(env), newClaimsStatsCommand(env), newClaimsForgetCommand(env), newClaimsImportCommand(env))
}

// scopeFlags say within what an id is meant.
type scopeFlags struct {
	queue, tenant, operation string
	command                  *cobra.Command
}

func (f *scopeFlags) add(command *cobra.Command) {
	f.command = command
	flags := command.Flags()
	flags.StringVarP(&f.queue, "queue", "q", "", "the `queue` (required)")
	flags.StringVar(&f.tenant, "tenant", "", "the `tenant` that the id belongs to; left out: none, which is not the tenant \"\"")
	flags.StringVar(&f.operation, "operation", "", "the `operation` that the id belongs to; left out: none")
}

// scope returns tenant and operation: nil for one that was not given.
func (f *scopeFlags) scope() (tenant, operation *string) {
	if f.command.Flags().Changed("tenant") {
		tenant = &f.tenant
	}
	if f.command.Flags().Changed("operation") {
		operation = &f.operation
	}
	return tenant, operation
}

func (f *scopeFlags) identity(id string) dedup.Identity {
	tenant, operation := f.scope()
	return dedup.Identity{Queue: f.queue, Tenant: tenant, Operation: operation, ID: id}
}

// words tells the scope to people.
func (f *scopeFlags) words() string {
	text := "queue " + f.queue
	tenant, operation := f.scope()
	if tenant != nil {
		text += fmt.Sprintf(", tenant %q", *tenant)
	}
	if operation != nil {
		text += fmt.Sprintf(", operation %q", *operation)
	}
	return text
}

// openQueue connects to the database and finds a queue there. A name that it does
// not know ends the command with ExitNothing. The caller closes the pool.
func (e *Env) openQueue(ctx context.Context, config *Config, name string) (*pgxpool.Pool, queuelist.Queue, error) {
	if name == "" {
		return nil, queuelist.Queue{}, usageError("--queue is missing: say which queue is meant")
	}
	pool, err := e.openPool(ctx, config)
	if err != nil {
		return nil, queuelist.Queue{}, err
	}
	queue, err := queuelist.Find(ctx, pool, pgschema.Schema(config.schema()), name)
	if err != nil {
		pool.Close()
		if _, unknown := errors.AsType[*queuelist.UnknownError](err); unknown {
			err = exitWith(ExitNothing, err)
		}
		return nil, queuelist.Queue{}, err
	}
	return pool, queue, nil
}

// claimView is a claim as it is printed.
type claimView struct {
	Queue     string  `json:"queue"`
	Tenant    *string `json:"tenant"`
	Operation *string `json:"operation"`
	ID        string  `json:"id"`
	Claim     string  `json:"claim"`
	// First is where the id was first seen; null when it was claimed outside Kafka.
	First              *claimPlace  `json:"first_seen"`
	RecordAt           time.Time    `json:"record_at"`
	ClaimedAt          time.Time    `json:"claimed_at"`
	Segments           []int16      `json:"segments"`
	Fingerprint        string       `json:"fingerprint,omitempty"`
	FingerprintVersion int16        `json:"fingerprint_version"`
	Result             *claimResult `json:"result"`
}

type claimPlace struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

type claimResult struct {
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

func viewClaim(identity dedup.Identity, found *dedup.ClaimRecord) claimView {
	view := claimView{
		Queue: identity.Queue, Tenant: identity.Tenant, Operation: identity.Operation, ID: identity.Shown(),
		Claim: found.Digest.String(), RecordAt: found.RecordAt.UTC(), ClaimedAt: found.ClaimedAt.UTC(), Segments: found.Segments,
		FingerprintVersion: found.FingerprintVersion,
	}
	if found.First != nil {
		view.First = &claimPlace{Topic: found.Topic, Partition: found.First.Partition, Offset: found.First.Offset}
	}
	if found.FingerprintVersion != 0 {
		view.Fingerprint = found.Fingerprint.String()
	}
	if found.Result != nil {
		view.Result = &claimResult{CreatedAt: found.Result.CreatedAt.UTC(), ExpiresAt: found.Result.ExpiresAt.UTC()}
	}
	return view
}

// print writes the claim as names and values.
func (v *claimView) print(e *Env) error {
	t := newTable("FIELD", "VALUE")
	t.row("id", v.ID)
	t.row("queue", v.Queue)
	t.row("tenant", orNone(v.Tenant))
	t.row("operation", orNone(v.Operation))
	t.row("claim", v.Claim)
	if v.First != nil {
		t.row("first seen", fmt.Sprintf("%s[%d]@%d", v.First.Topic, v.First.Partition, v.First.Offset))
	} else {
		t.row("first seen", "outside Kafka")
	}
	t.row("record's time", timeText(v.RecordAt))
	t.row("claimed at", timeText(v.ClaimedAt)+" (the database's clock)")
	t.row("segment", fmt.Sprint(v.Segments))
	if v.FingerprintVersion != 0 {
		t.row("fingerprint", fmt.Sprintf("%s (version %d)", v.Fingerprint, v.FingerprintVersion))
	} else {
		t.row("fingerprint", "none: nothing conflicts with it")
	}
	if v.Result != nil {
		t.row("result", "kept until "+timeText(v.Result.ExpiresAt))
	} else {
		t.row("result", "none")
	}
	return e.printTable(t)
}

func orNone(text *string) string {
	if text == nil {
		return "none"
	}
	return fmt.Sprintf("%q", *text)
}

// timeText writes a time for people, in UTC.
func timeText(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

func newClaimsShowCommand(env *Env) *cobra.Command {
	var scope scopeFlags
	var asJSON bool
	command := &cobra.Command{
		Use:   "show ID",
		Short: "Tell whether an id has been handled, and where it was first seen",
		Long: `Looks an id up among the claims: the messages whose effect has been made. A message
that is being handled, waits in the delay queue or is dead has no claim. Exit code
3 says that the id is not there.`,
		Example: `  claimq claims show --queue orders 4711
  claimq claims show --queue orders --tenant acme 4711 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			pool, queue, err := env.openQueue(cmd.Context(), config, scope.queue)
			if err != nil {
				return err
			}
			defer pool.Close()
			identity := scope.identity(args[0])
			found, err := dedup.New(dedup.Config{Schema: config.schema()}).Find(cmd.Context(), pool, identity)
			if err != nil {
				return err
			}
			if found == nil {
				return notClaimed(&scope, identity, queue)
			}
			view := viewClaim(identity, found)
			if asJSON {
				return env.printJSON(view)
			}
			return view.print(env)
		},
	}
	scope.add(command)
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func notClaimed(scope *scopeFlags, identity dedup.Identity, queue queuelist.Queue) error {
	if queue.ClaimsNothing {
		return exitWith(ExitNothing, fmt.Errorf("%s claims nothing (claims: none), so no id is known there", scope.words()))
	}
	return exitWith(ExitNothing, fmt.Errorf("%s: the id %q has no claim; a message with it would be handled. Claims are complete since %s; tenant and operation must be given when the queue has rules for them",
		scope.words(), identity.Shown(), timeText(queue.RememberedSince)))
}
