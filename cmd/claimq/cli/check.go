package cli

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"

	"github.com/spf13/cobra"
)

func newConfigCommand(env *Env) *cobra.Command {
	return group("config", "Look at the configuration", newConfigCheckCommand(env))
}

func newConfigCheckCommand(env *Env) *cobra.Command {
	var online, asJSON bool
	command := &cobra.Command{
		Use:   "check",
		Short: "Say whether the configuration is right and what each queue promises",
		Long: `Reads the configuration as run does and prints the contract of each queue: where the
id is found, within what it is unique, how long it is remembered, what a repeat, a
conflict, an unknown outcome and a failure get, and the arithmetic of what may
bring an id again. What cannot work is refused with exit code 78.

With --online it also asks Kafka and the database: whether topics and schema are
there, how long Kafka keeps the records, whether the statements of the handlers
are right, and whether the id rules are those that the queues run with.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			report, err := config.check()
			if err == nil && online {
				err = env.checkOnline(cmd.Context(), config, report)
			}
			return errors.Join(env.printReport(report, asJSON), err)
		},
	}
	command.Flags().BoolVar(&online, "online", false, "also ask Kafka and the database")
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

// checkReport is what config check prints.
type checkReport struct {
	File   string     `json:"file,omitempty"`
	Queues []contract `json:"queues"`
	// Warnings are what is allowed and may surprise.
	Warnings []string `json:"warnings,omitempty"`
}

// check looks at everything that needs neither Kafka nor a database. The report
// holds the queues that are right.
func (c *Config) check() (*checkReport, error) {
	report := &checkReport{File: c.file, Queues: []contract{}}
	env := Env{Stderr: discard{}, Environ: func() []string { return nil }}
	var errs []error
	_, err := env.kafkaOptions(c)
	errs = append(errs, err)
	_, err = c.poolConfig()
	errs = append(errs, err, c.checkSections())
	if len(c.Queues) == 0 {
		errs = append(errs, placed(c, fieldErrorf([]string{"queues"}, "no queue is configured")))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
		queue, _, err := c.consumerConfig(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		report.Queues = append(report.Queues, contractOf(queue))
	}
	if err := errors.Join(errs...); err != nil {
		return report, configError(err)
	}
	return report, nil
}

// mostSlices is the outbox's: each slice has at least one of its buckets.
const mostSlices = 64

// checkSections looks at the sections that have no checks of their own.
func (c *Config) checkSections() error {
	var errs []error
	if c.Relay.Slices < 1 || c.Relay.Slices > mostSlices {
		errs = append(errs, fieldErrorf([]string{"relay", "slices"}, "%d is not between 1 and %d", c.Relay.Slices, mostSlices))
	}
	if _, _, err := net.SplitHostPort(c.HTTP.Listen); err != nil && c.HTTP.Listen != listenOff {
		errs = append(errs, fieldErrorf([]string{"http", "listen"}, "%q is neither host:port, nor :port, nor %s", c.HTTP.Listen, listenOff))
	}
	if err := errors.Join(errs...); err != nil {
		return configError(placed(c, err))
	}
	return nil
}

// discard is io.Discard for an Env whose log nobody reads.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (e *Env) printReport(report *checkReport, asJSON bool) error {
	if asJSON {
		return e.printJSON(report)
	}
	for i, queue := range report.Queues {
		if i > 0 {
			e.printf("\n")
		}
		e.printf("queue %s\n", queue.Queue)
		for _, line := range queue.lines() {
			e.printf("  %-12s %s\n", line.name, oneLine(line.text))
		}
	}
	for _, warning := range report.Warnings {
		e.printf("\nwarning: %s\n", warning)
	}
	return nil
}

// checkOnline adds what Kafka and the database say.
func (e *Env) checkOnline(ctx context.Context, config *Config, report *checkReport) error {
	return errors.Join(e.checkKafka(ctx, config, report), e.checkDatabase(ctx, config, report))
}
