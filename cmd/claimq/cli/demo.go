package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/term"

	"github.com/claimq/claimq/internal/demo"
	"github.com/claimq/claimq/migrations"
)

// exitInterrupted: a signal ended it before it had a result; nothing is left behind.
const exitInterrupted = 130

// demoWorker is the hidden command that the demo's second consumer is.
const demoWorker = "worker"

type demoFlags struct {
	orders int
	seed   uint64
	keep   bool
	asJSON bool
}

func newDemoCommand(env *Env) *cobra.Command {
	var flags demoFlags
	command := &cobra.Command{
		Use:   "demo",
		Short: "Show all of it in a minute: repeats, failures, a killed consumer, and the account",
		Long: `Starts a Kafka in this process and a Postgres (found on this machine, else
downloaded once), sends orders of which some are repeats, fail, are poison or
reuse an id, lets a second consumer join and kills it in the middle of a batch, and
then compares the database and the topics with what was sent. Exit code 0 only when
every order took effect once and everything else is accounted for.

Nothing stays: no process, no file, also after Ctrl-C. With --keep everything stays
up after the account, to be explored, until Ctrl-C.

--brokers and --dsn, or a configuration file with -c, run the same on servers of
yours, with topics and a schema of random names, which are removed in the end unless
--keep. Servers that only the environment names are left alone.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				flags.seed = demo.NewSeed()
			}
			return env.demo(cmd, flags)
		},
	}
	command.Flags().IntVar(&flags.orders, "orders", demo.DefaultOrders, "how `many` records to send")
	command.Flags().Uint64Var(&flags.seed, "seed", 0, "`number` that makes the mix; the same one makes the same mix (default: a random one)")
	command.Flags().BoolVar(&flags.keep, "keep", false, "leave everything up after the account, until Ctrl-C")
	command.Flags().BoolVar(&flags.asJSON, "json", false, "print the account as JSON")
	command.AddCommand(newDemoWorkerCommand(env))
	return command
}

// newDemoWorkerCommand is the second consumer: the demo starts it and kills it.
func newDemoWorkerCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:    demoWorker,
		Short:  "The demo's second consumer, started by the demo",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := demo.RunWorker(cmd.Context(), env.Stdin, env.Stdout, env.Stderr, demo.Given{
				Kafka: func() ([]kgo.Opt, error) {
					config, err := env.load()
					if err != nil {
						return nil, err
					}
					return env.kafkaOptions(config)
				},
				Postgres: func() (*pgxpool.Config, error) {
					config, err := env.load()
					if err != nil {
						return nil, err
					}
					return config.poolConfig()
				},
			})
			if err != nil {
				return exitWith(ExitFailed, nil) // the demo has been told
			}
			return nil
		},
	}
}

// demo runs the demo and prints its account.
func (e *Env) demo(cmd *cobra.Command, flags demoFlags) error {
	config, err := e.demoConfig(cmd, flags)
	if err != nil {
		return err
	}
	ctx, release := e.demoSignals(cmd.Context())
	defer release()
	printed := false
	show := func(account *demo.Account) error {
		printed = true
		if flags.asJSON {
			return e.printJSON(account)
		}
		account.Print(writerFunc(func(text []byte) (int, error) { e.printf("%s", text); return len(text), nil }))
		return nil
	}
	config.Kept = func(account *demo.Account, reach demo.Reach) {
		_ = show(account)
		e.printReach(reach)
	}
	account, err := demo.Run(ctx, config)
	switch {
	case errors.Is(err, errDemoInterrupted):
		return exitWith(exitInterrupted, err)
	case account == nil:
		return err
	}
	if !printed {
		err = errors.Join(err, show(account))
		if account.Holds() && !flags.asJSON {
			e.printNext()
		}
	}
	if !account.Holds() {
		return errors.Join(exitWith(ExitFailed, fmt.Errorf("the account does not hold: %d invariants are broken", len(account.Broken))), err)
	}
	return err
}

// writerFunc is an io.Writer made of a function.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

// demoConfig says which servers are used: only those that the command line names.
// A variable in the environment of a shell is easily forgotten, and a demo has no
// business on a server that it was not pointed at.
func (e *Env) demoConfig(cmd *cobra.Command, flags demoFlags) (demo.Config, error) {
	d := demo.Config{Orders: flags.orders, Seed: flags.seed, Keep: flags.keep}
	if flags.orders < demo.MinOrders || flags.orders > demo.MaxOrders {
		return d, usageError("--orders must be between %d and %d", demo.MinOrders, demo.MaxOrders)
	}
	file := cmd.Flags().Changed("config")
	givenKafka, givenDatabase := file || cmd.Flags().Changed("brokers"), file || cmd.Flags().Changed("dsn")
	arguments := []string{cmd.Name(), demoWorker}
	var environ []string
	if givenKafka || givenDatabase { //nolint:nestif // two halves of one thing, each with its own errors
		config, err := e.load()
		if err != nil {
			return d, err
		}
		if file {
			arguments = append(arguments, "--config", e.flags.config)
		}
		if givenKafka {
			if d.Kafka, err = e.kafkaOptions(config); err != nil {
				return d, err
			}
			if d.Brokers, err = config.Kafka.brokers(); err != nil {
				return d, configError(placed(config, err))
			}
			arguments = append(arguments, "--brokers", strings.Join(d.Brokers, ","))
		}
		if givenDatabase {
			if d.Postgres, err = config.poolConfig(); err != nil {
				return d, err
			}
			connection := d.Postgres.ConnConfig
			d.ShownDSN = fmt.Sprintf("postgres://%s@%s/%s", connection.User, net.JoinHostPort(connection.Host, strconv.Itoa(int(connection.Port))), connection.Database)
			d.Migrate = func(ctx context.Context) (*pgx.Conn, error) { return e.connectDirect(ctx, config) }
			if e.flags.dsn != "" { // in the environment: command lines are for all to read
				environ = append(environ, "CLAIMQ_DSN="+e.flags.dsn)
			}
		}
	}
	self, err := os.Executable()
	if err != nil {
		return d, fmt.Errorf("the second consumer is this program once more, and it cannot be found: %w", err)
	}
	d.Worker = func() *exec.Cmd {
		worker := exec.Command(self, arguments...) //nolint:gosec,noctx // this binary; it is killed by its number
		worker.Env = append(e.Environ(), environ...)
		return worker
	}
	d.Progress = demo.NewProgress(e.Stderr, isTerminal(e.Stderr))
	if e.flags.logLevel != "" {
		d.Log = e.Stderr
	}
	return d, nil
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

var errDemoInterrupted = errors.New("interrupted")

// demoSignals returns a context that ends with the first signal. Further ones
// change nothing: what is left to do then is to leave nothing behind, and that is
// bounded. A reader of the output that goes away, or a terminal, ends the demo too.
func (e *Env) demoSignals(ctx context.Context) (context.Context, func()) {
	received := e.Signals
	giveBack := func() {}
	if received == nil {
		own := make(chan os.Signal, 1)
		signal.Notify(own, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
		received, giveBack = own, func() { signal.Stop(own) }
	}
	ctx, stop := context.WithCancelCause(ctx)
	released := make(chan struct{})
	go func() {
		told := false
		for {
			select {
			case <-received:
				if stop(errDemoInterrupted); !told {
					told = true
					_, _ = fmt.Fprintln(e.Stderr, "\nstopping")
				}
			case <-released:
				return
			}
		}
	}()
	return ctx, func() {
		giveBack()
		close(released)
		stop(nil)
	}
}

// printReach tells how to look around in what is kept.
func (e *Env) printReach(r demo.Reach) {
	schema := ""
	if r.Schema != migrations.DefaultSchema {
		schema = " --schema " + r.Schema
	}
	e.printf(`
Everything stays up until Ctrl-C:
  Kafka     %s   topics %s, %s, %s
  Postgres  %s   schema %s, table %s.demo_orders

  claimq status --dsn '%s'%s
  psql '%s' -c 'select * from %s.demo_orders limit 5'
`, r.Brokers, r.Orders, r.Effects, r.Dead, r.DSN, r.Schema, r.Schema, r.DSN, schema, r.DSN, r.Schema)
}

// printNext tells what to try after a demo.
func (e *Env) printNext() {
	e.printf(`
Next:
  claimq demo --keep           the same, left up: look around with claimq status --dsn …
  claimq run -c claimq.yaml    your own topic: deploy/claimq.example.yaml is a file to start from
  docs/                        the pages, in order
`)
}
