package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/claimq/claimq/internal/localbouncer"
	"github.com/claimq/claimq/internal/localkafka"
	"github.com/claimq/claimq/internal/localpg"
)

// Exit codes of teststack's own; all others are the command's.
const (
	exitStack      = 3   // the stack did not start, or a part is missing
	exitNotFound   = 127 // the command does not exist, as shells say it
	exitSignalBase = 128 // plus the signal that ended the command
)

// stopTimeout bounds how long the servers are waited for at the end.
const stopTimeout = 20 * time.Second

type options struct {
	command                      []string
	kafka, bouncer, allowMissing bool
}

// run starts the stack, runs the command and returns its exit code.
func run(o options) (code int, err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	stack, err := startStack(o, signals)
	defer func() {
		if stopErr := stack.stop(); stopErr != nil {
			err = errors.Join(err, stopErr)
		}
	}()
	if err != nil {
		return exitStack, err
	}
	return runCommand(o.command, stack.environment(), signals)
}

// runCommand passes signals on to the command and all that it has started,
// which is a process group of its own: a Ctrl-C reaches it once, through here.
func runCommand(command, environment []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return exitNotFound, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case received := <-signals:
			if number, ok := received.(syscall.Signal); ok {
				_ = syscall.Kill(-cmd.Process.Pid, number)
			}
		case err := <-done:
			return exitCode(err)
		}
	}
}

func exitCode(err error) (int, error) {
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &ended):
		return exitStack, err
	}
	if status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignalBase + int(status.Signal()), nil
	}
	return ended.ExitCode(), nil
}

// stack is what has been started; parts that have not are nil.
type stack struct {
	postgres *localpg.Server
	bouncer  *localbouncer.Server
	kafka    *localkafka.Cluster
}

// startStack starts all parts, at the same time where it can, and gives up
// when a signal arrives. The stack it returns is to be stopped also on an error.
func startStack(o options, signals <-chan os.Signal) (*stack, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() {
		defer close(watched)
		select {
		case received := <-signals:
			cancel(fmt.Errorf("stopped by signal %v while starting", received))
		case <-ctx.Done():
		}
	}()
	s := &stack{}
	var wait sync.WaitGroup
	var errs [2]error
	wait.Go(func() { errs[0] = s.startDatabase(ctx, o) })
	if o.kafka {
		wait.Go(func() { errs[1] = s.startKafka(ctx, o) })
	}
	wait.Wait()
	err := errors.Join(errs[:]...)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return s, err
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "teststack: "+format+"\n", args...) }

// missing turns the lack of a part into a notice when that is allowed.
func missing(o options, err error, kinds ...error) error {
	for _, kind := range kinds {
		if errors.Is(err, kind) && o.allowMissing {
			say("going on without: %v", err)
			return nil
		}
	}
	return err
}

func (s *stack) startDatabase(ctx context.Context, o options) (err error) {
	s.postgres, err = localpg.Start(ctx, localpg.Config{
		NoFsync: true,
		Logf:    say,
		Settings: map[string]string{
			"max_connections": "400",
			"shared_buffers":  "256MB",
			// A schema is dropped in one transaction, which locks every table
			// and index in it.
			"max_locks_per_transaction": "512",
			"max_wal_size":              "4GB",
			"autovacuum_naptime":        "5s",
		},
	})
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	if !o.bouncer {
		return nil
	}
	s.bouncer, err = localbouncer.Start(ctx, localbouncer.Config{DSN: s.postgres.DSN("")})
	return missing(o, err, localbouncer.ErrNoBinary)
}

func (s *stack) startKafka(ctx context.Context, o options) (err error) {
	s.kafka, err = localkafka.Start(ctx, localkafka.Config{Logf: say})
	return missing(o, err, localkafka.ErrNoJava, localkafka.ErrNoMaven)
}

// environment tells the command where everything is.
func (s *stack) environment() []string {
	environment := []string{
		"CLAIMQ_TEST_DSN=" + s.postgres.DSN(""),
		localpg.BinDirVariable + "=" + s.postgres.BinDir,
	}
	if s.bouncer != nil {
		environment = append(environment, "CLAIMQ_TEST_PGBOUNCER="+s.bouncer.DSN())
	}
	if s.kafka != nil {
		environment = append(environment,
			"CLAIMQ_TEST_KAFKA="+strings.Join(s.kafka.Brokers(), ","),
			localkafka.JarsVariable+"="+s.kafka.Jars)
	}
	return environment
}

// stop ends all parts. Nobody wants their data, so Kafka is not asked to hand
// anything over.
func (s *stack) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	if s.kafka != nil {
		errs = append(errs, s.kafka.Discard())
	}
	if s.bouncer != nil {
		errs = append(errs, s.bouncer.Stop(ctx))
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	return errors.Join(errs...)
}
