// Command localstack keeps a real Postgres or Kafka running for a developer:
//
//	go run ./internal/cmd/localstack start postgres
//	go run ./internal/cmd/localstack start -brokers 3 kafka
//	go run ./internal/cmd/localstack status
//	go run ./internal/cmd/localstack stop kafka
//
// The servers run on free ports until they are stopped; stop removes their
// data. What runs is remembered in the user's cache directory. The scripts
// deploy/kafka/kafka and deploy/postgres/postgres are short names for it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "localstack:", err)
		os.Exit(1) //nolint:gocritic // run has returned: nothing is left to cancel
	}
}

const usage = "usage: localstack start [-brokers N] postgres|kafka | stop [postgres|kafka] | status [postgres|kafka]"

// run does one command and writes what a person is to know to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command given\n%s", usage)
	}
	flags := flag.NewFlagSet("localstack "+args[0], flag.ContinueOnError)
	brokers := flags.Int("brokers", 1, "how many Kafka brokers to start")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	names, err := chosen(flags.Args())
	if err != nil {
		return err
	}
	store, err := openStore()
	if err != nil {
		return err
	}
	switch args[0] {
	case "start":
		if len(names) != 1 {
			return fmt.Errorf("start: name one of postgres and kafka\n%s", usage)
		}
		return start(ctx, store, names[0], *brokers, out)
	case "stop":
		return each(names, func(name string) error { return stop(ctx, store, name, out) })
	case "status":
		return each(names, func(name string) error { return status(store, name, out) })
	default:
		return fmt.Errorf("unknown command %q\n%s", args[0], usage)
	}
}

// chosen are the servers that a command line names: all when it names none.
func chosen(names []string) ([]string, error) {
	if len(names) == 0 {
		return []string{"postgres", "kafka"}, nil
	}
	for _, name := range names {
		if name != "postgres" && name != "kafka" {
			return nil, fmt.Errorf("unknown server %q: there are postgres and kafka", name)
		}
	}
	return names, nil
}

func each(names []string, do func(string) error) error {
	for _, name := range names {
		if err := do(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
