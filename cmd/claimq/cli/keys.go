package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/keystry"
)

func newKeysCommand(env *Env) *cobra.Command {
	return group("keys", "Try id rules before they are used", newKeysTryCommand(env))
}

// keysFlags are what keys try takes.
type keysFlags struct {
	queue       string
	topics      []string
	last        int
	id          []string
	tenant      []string
	operation   []string
	fingerprint string
	onMissing   string
	asJSON      bool
}

func newKeysTryCommand(env *Env) *cobra.Command {
	var flags keysFlags
	command := &cobra.Command{
		Use:   "try",
		Short: "Read a real topic and tell what an id rule would do",
		Long: `Reads the newest records of a topic and tells what a rule makes of them: how many are
distinct, repeats of an earlier one, in conflict with one (the same id with another
content), without an id, or unreadable; in which fields conflicts differ; and
whether an id looks shared by a conversation. It joins no group and writes nothing.

The rule is that of a configured queue (--config and --queue), that of the flags, or
the queue's with the flags' parts in their place. Sources are written as in the
configuration: header:NAME, key, json:PATH, xml:PATH, join(SOURCE,SOURCE),
cloudevents, standard-webhooks, envelope. Give --id more than once for a chain.

Repeats are found among the records that are read, so the more the better.`,
		Example: `  claimq keys try --brokers localhost:9092 --topic orders --id header:id
  claimq keys try -c claimq.yaml --queue orders --last 100000
  claimq keys try -c claimq.yaml --queue orders --fingerprint "raw ignore(trace_id)"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			options, err := flags.options(config)
			if err != nil {
				return err
			}
			client, err := env.kafkaOptions(config)
			if err != nil {
				return err
			}
			report, err := keystry.Try(cmd.Context(), client, options)
			if err != nil {
				return keysError(err)
			}
			if err := env.printTrial(&report, flags.asJSON); err != nil {
				return err
			}
			if report.Records == 0 {
				return exitWith(ExitNothing, nil)
			}
			return nil
		},
	}
	f := command.Flags()
	f.StringVarP(&flags.queue, "queue", "q", "", "a `queue` of the configuration: its topics and its rule")
	f.StringSliceVarP(&flags.topics, "topic", "t", nil, "the `topic` to read (default: the queue's)")
	f.IntVarP(&flags.last, "last", "n", 10_000, "how many of the newest `records` of each topic to look at")
	f.StringArrayVar(&flags.id, "id", nil, "a `source` of the id; more than one make a chain")
	f.StringArrayVar(&flags.tenant, "tenant", nil, "a `source` of the tenant")
	f.StringArrayVar(&flags.operation, "operation", nil, "a `source` of the operation")
	f.StringVar(&flags.fingerprint, "fingerprint", "", "the fingerprint `rule`: raw, fields(PATH,…), none, with ignore(PATH,…) behind it")
	f.StringVar(&flags.onMissing, "on-missing", "", "what a message without an id is: reject or offset")
	f.BoolVar(&flags.asJSON, "json", false, "print JSON")
	return command
}

// options returns what is to be tried.
func (f *keysFlags) options(config *Config) (keystry.Options, error) {
	o := keystry.Options{Topics: f.topics, Last: f.last, Queue: f.queue}
	if f.last < 1 {
		return o, usageError("--last is %d: it must be greater than zero", f.last)
	}
	if f.queue != "" {
		queue, err := config.queue(f.queue)
		if err != nil {
			return o, err
		}
		if o.Rules, err = config.rules(f.queue); err != nil {
			return o, err
		}
		if len(o.Topics) == 0 {
			o.Topics = queue.Topics
		}
	}
	if err := f.change(&o.Rules); err != nil {
		return o, exitWith(ExitUsage, err)
	}
	switch {
	case len(o.Topics) == 0:
		return o, usageError("no topic is named: give --topic, or --config and --queue for the topics of a queue")
	case len(o.Rules.ID) == 0 && o.Rules.OnMissing == dedup.MissingReject:
		return o, usageError("no id rule: give --id, as --id header:NAME or --id json:PATH, or --config and --queue for the rule of a queue")
	}
	if err := o.Rules.Validate(); err != nil {
		return o, exitWith(ExitUsage, err)
	}
	slices.Sort(o.Topics)
	o.Topics = slices.Compact(o.Topics)
	return o, nil
}

// change puts the flags' parts in the place of the rule's.
func (f *keysFlags) change(rules *dedup.Rules) error {
	var errs []error
	chain := func(flag string, texts []string, sources *[]dedup.Source) {
		if len(texts) == 0 {
			return
		}
		*sources = nil
		for _, text := range texts {
			source, err := dedup.ParseSource(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
				continue
			}
			*sources = append(*sources, source)
		}
	}
	chain("id", f.id, &rules.ID)
	chain("tenant", f.tenant, &rules.Tenant)
	chain("operation", f.operation, &rules.Operation)
	var err error
	if f.fingerprint != "" {
		if rules.Fingerprint, err = dedup.ParseFingerprint(f.fingerprint); err != nil {
			errs = append(errs, fmt.Errorf("--fingerprint: %w", err))
		}
	}
	if f.onMissing != "" {
		if rules.OnMissing, err = dedup.ParseMissingPolicy(f.onMissing); err != nil {
			errs = append(errs, fmt.Errorf("--on-missing: %w", err))
		}
	}
	return errors.Join(errs...)
}

func keysError(err error) error {
	if _, missing := errors.AsType[*keystry.MissingTopicError](err); missing {
		return exitWith(ExitNothing, err)
	}
	return kafkaError(err)
}

// placeText writes a place as logs do.
func placeText(p keystry.Place) string {
	return fmt.Sprintf("%s[%d]@%d", p.Topic, p.Partition, p.Offset)
}

// percent is a share for people.
func percent(part, whole int) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// fieldsText lists paths, as far as a line has room.
func fieldsText(fields []string) string {
	const shown = 5
	if len(fields) == 0 {
		return "the first copy is too long ago or too large to compare"
	}
	text := "differs in " + strings.Join(fields[:min(len(fields), shown)], ", ")
	if len(fields) > shown {
		text += fmt.Sprintf(" and %d more", len(fields)-shown)
	}
	return text
}
