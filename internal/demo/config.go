package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config says what a run uses. Worker is required; the zero value of everything
// else is a run of DefaultOrders on servers of its own.
type Config struct {
	// Orders is how many records are sent, at least MinOrders. Default: DefaultOrders.
	Orders int
	// Seed makes the mix. The same seed makes the same mix.
	Seed uint64
	// Keep leaves everything up after the account, until the context ends.
	Keep bool

	// Kafka are the options of a client for a Kafka that is there already, and
	// Brokers its addresses, for people to read. Without options one is started in
	// this process.
	Kafka   []kgo.Opt
	Brokers []string
	// Postgres is a pool's configuration for a server that is there already, and
	// Migrate connects to it directly, past any pooler. Without it one is started.
	Postgres *pgxpool.Config
	Migrate  func(ctx context.Context) (*pgx.Conn, error)
	// ShownDSN is how commands reach that server, for people to read: without a
	// password.
	ShownDSN string

	// Worker makes the command that ends up in RunWorker: this binary, once more.
	Worker func() *exec.Cmd
	// Progress is told what happens. Default: nothing is told.
	Progress Progress
	// Patience is how long nothing may happen before the run is given up with a
	// *StuckError. Default: 75 s, which is longer than a lease of the delay queue that a
	// killed consumer leaves behind.
	Patience time.Duration
	// Log takes what the consumers log. Default: the last lines are kept, and are
	// part of the error when a run gets stuck.
	Log io.Writer
	// Kept is told, once, when everything stays up with Keep; account is what was
	// found.
	Kept func(account *Account, reach Reach)
}

// A Reach is how a kept run can be reached.
type Reach struct {
	Brokers string
	DSN     string // without a password when the server was given
	Schema  string
	Orders  string // topics
	Effects string
	Dead    string
}

// withDefaults fills what was left out; the error names the field.
func (c Config) withDefaults() (Config, error) {
	if c.Orders == 0 {
		c.Orders = DefaultOrders
	}
	if c.Orders < MinOrders || c.Orders > MaxOrders {
		return c, fmt.Errorf("orders: %d is not between %d, the least that has some of every kind in it, and %d, which are compared in memory", c.Orders, MinOrders, MaxOrders)
	}
	if c.Worker == nil {
		return c, errors.New("demo: Config.Worker is missing: the second consumer is a process of its own")
	}
	if c.Patience == 0 {
		c.Patience = 75 * time.Second
	}
	if c.Progress == nil {
		c.Progress = silent{}
	}
	return c, nil
}

// MaxOrders bounds what the comparison holds in memory.
const MaxOrders = 5_000_000
