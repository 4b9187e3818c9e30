// Command claimq runs queues that read Kafka and write Postgres, each message's
// effect once, and looks after them. Everything it does is in package cli.
package main

import (
	"context"
	"os"

	"github.com/claimq/claimq/cmd/claimq/cli"
)

func main() { os.Exit(cli.Run(context.Background(), os.Args[1:], cli.OSEnv())) }
