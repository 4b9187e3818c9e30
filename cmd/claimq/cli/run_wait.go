package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/claimq/claimq/internal/kafkaclient"
)

// The first and the longest pause between two tries to reach something.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 15 * time.Second
)

// curable reports whether an error can pass by itself, so that trying again helps.
func curable(err error) bool {
	if _, decided := errors.AsType[*exitError](err); decided || untrusted(err) {
		return false
	}
	return waitWorthwhile(err) || kafkaPasses(err) || errors.Is(err, errStandby)
}

// errStandby is what a queue cannot run on. A standby may be promoted, so it is
// waited for.
var errStandby = errors.New("database: this server is a standby and takes no writes: lead database.dsn to the primary, or name all servers in it with target_session_attrs=read-write")

// pauses are the waits between tries: growing, with jitter.
func pauses() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = firstPause, longestPause, 2
	return b
}

// await tries until it works, telling the log and the readiness each time why it
// does not. It returns what waiting does not cure, or the context's cause.
func (r *runner) await(ctx context.Context, what string, try func(ctx context.Context) error) error {
	defer r.health.arrived(what)
	wait := pauses()
	for {
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		err := try(attempt)
		timedOut := attempt.Err() != nil
		cancel()
		switch {
		case err == nil:
			r.logger.Debug("reached", "what", what)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !curable(err) && !timedOut:
			return err
		}
		pause := wait.NextBackOff()
		r.health.waiting(what, err)
		r.logger.Warn("cannot be reached yet; trying again", "what", what, "error", err, "in", pause.Round(time.Millisecond))
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// sleep waits, and reports false when the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// tryDatabase migrates when told to, and looks at all that the database must have.
func (r *runner) tryDatabase(ctx context.Context) error {
	if r.flags.migrate {
		applied, after, err := r.env.migrate(ctx, r.config)
		if err != nil {
			return err
		}
		if len(applied) > 0 {
			r.logger.Info("migrated", "schema", after.Schema, "version", after.Current)
		}
	}
	if err := r.config.checkDatabase(ctx, r.pool); err != nil {
		return err
	}
	var standby bool
	if err := r.pool.QueryRow(ctx, "select pg_is_in_recovery()").Scan(&standby); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if standby {
		return errStandby
	}
	return checkStatements(ctx, r.config, r.pool, r.statements)
}

// tryKafka asks whether a broker answers and knows who is asking. Topics are the
// queues' own business.
func (r *runner) tryKafka(ctx context.Context) error {
	client, err := kafkaclient.New(r.kafka...)
	if err != nil {
		return configError(err)
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return kafkaError(err)
	}
	return nil
}
