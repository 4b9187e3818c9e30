package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/claimq/claimq/internal/localkafka"
	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/localproc"
)

// stopTimeout bounds an orderly shutdown; what still runs then is killed.
const stopTimeout = 30 * time.Second

func start(ctx context.Context, s store, name string, brokers int, out io.Writer) error {
	// Two starts at once would both find nothing running.
	unlock, err := localproc.Lock(ctx, filepath.Join(s.dir, name+".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if present, ok, err := s.load(name); err != nil {
		return err
	} else if ok && present.running() {
		fmt.Fprintf(out, "%s runs already: %s\n", name, present.Address)
		return nil
	} else if ok {
		if err := os.RemoveAll(present.Dir); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "cq-"+name+"-")
	if err != nil {
		return err
	}
	var started record
	if name == "kafka" {
		started, err = startKafka(ctx, dir, brokers)
	} else {
		started, err = startPostgres(ctx, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.save(name, started); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s runs: %s\n", name, started.Address)
	return nil
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "localstack: "+format+"\n", args...) }

func startPostgres(ctx context.Context, dir string) (record, error) {
	server, err := localpg.Start(ctx, localpg.Config{Dir: dir, Logf: say})
	if err != nil {
		return record{}, err
	}
	r := record{Address: server.DSN(""), Dir: dir, PIDs: []int{server.PID()}}
	return r, server.Detach()
}

func startKafka(ctx context.Context, dir string, brokers int) (record, error) {
	cluster, err := localkafka.Start(ctx, localkafka.Config{Dir: dir, Brokers: brokers, Logf: say})
	if err != nil {
		return record{}, err
	}
	pids, err := cluster.Detach()
	return record{Address: strings.Join(cluster.Brokers(), ","), Dir: dir, PIDs: pids}, err
}

func stop(ctx context.Context, s store, name string, out io.Writer) error {
	present, ok, err := s.load(name)
	if err != nil {
		return err
	}
	if !ok {
		fmt.Fprintf(out, "%s does not run\n", name)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if name == "postgres" {
		err = localpg.StopDir(ctx, present.Dir)
	} else {
		err = stopProcesses(ctx, present)
	}
	if err := errors.Join(err, os.RemoveAll(present.Dir), s.forget(name)); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s is stopped\n", name)
	return nil
}

// stopProcesses ends the recorded processes, in order if there is time.
func stopProcesses(ctx context.Context, r record) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, pid := range r.PIDs {
		if localproc.Mentions(pid, r.Dir) {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	}
	for r.running() {
		select {
		case <-ctx.Done():
			for _, pid := range r.PIDs {
				if localproc.Mentions(pid, r.Dir) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			return fmt.Errorf("it did not stop in time (%w) and was killed", ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

func status(s store, name string, out io.Writer) error {
	present, ok, err := s.load(name)
	switch {
	case err != nil:
		return err
	case !ok:
		fmt.Fprintf(out, "%s does not run\n", name)
	case !present.running():
		fmt.Fprintf(out, "%s has ended by itself; its log is in %s\n", name, present.Dir)
	default:
		fmt.Fprintf(out, "%s runs: %s (processes %v, files %s)\n", name, present.Address, present.PIDs, present.Dir)
	}
	return nil
}
