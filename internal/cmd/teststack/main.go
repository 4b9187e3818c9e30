// Command teststack runs a command, usually "go test", with a real Postgres, a
// real Kafka and a PgBouncer beside it:
//
//	go run ./internal/cmd/teststack -- go test ./...
//	go run ./internal/cmd/teststack -kafka=false -- go test ./dedup
//
// The command finds them in its environment:
//
//	CLAIMQ_TEST_DSN         Postgres, as superuser
//	CLAIMQ_TEST_KAFKA       Kafka brokers, host:port, separated by commas
//	CLAIMQ_TEST_KAFKA_HOME  Kafka's jars, so that tests can start brokers of their own
//	CLAIMQ_TEST_PGBOUNCER   the same Postgres through a PgBouncer in transaction mode
//
// Its exit code is the command's. A part that is missing on this machine is an
// error which names the package to install; -allow-missing goes on without it,
// except in continuous integration (CI=true). Whatever ends teststack, also
// SIGKILL, leaves no server and no file.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	flags := flag.NewFlagSet("teststack", flag.ExitOnError)
	kafka := flags.Bool("kafka", true, "start a Kafka broker")
	bouncer := flags.Bool("pgbouncer", true, "start a PgBouncer")
	allowMissing := flags.Bool("allow-missing", false, "go on without the parts that this machine lacks")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: teststack [flags] -- command [argument…]\n\nRuns the command with a real Postgres and Kafka beside it.\n\n")
		flags.PrintDefaults()
	}
	_ = flags.Parse(os.Args[1:]) // exits by itself
	if flags.NArg() == 0 {
		flags.Usage()
		os.Exit(2)
	}
	code, err := run(options{
		command:      flags.Args(),
		kafka:        *kafka,
		bouncer:      *bouncer,
		allowMissing: *allowMissing && os.Getenv("CI") != "true",
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "teststack:", err)
	}
	os.Exit(code)
}
