package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// errStop is why a run ends gracefully.
var errStop = errors.New("a signal asked it to stop")

// errAtOnce ends a run that was asked twice. What was under way is rolled back by
// the database when its connections are gone, and read again from the position.
var errAtOnce = errors.New("stopped at once by a second signal; what was under way is done by the next run")

// signals returns a context that ends with the first signal, or with ctx, and a
// channel that is closed by the second signal. release gives the signals back.
func (e *Env) signals(ctx context.Context, logger *slog.Logger) (graceful context.Context, atOnce <-chan struct{}, release func()) {
	received := e.Signals
	giveBack := func() {}
	if received == nil {
		own := make(chan os.Signal, 2)
		signal.Notify(own, syscall.SIGINT, syscall.SIGTERM)
		received, giveBack = own, func() { signal.Stop(own) }
	}
	graceful, stop := context.WithCancelCause(ctx)
	released := make(chan struct{})
	second := make(chan struct{})
	go func() {
		for count := 0; ; {
			select {
			case name := <-received:
				count++
				logger.Info("signal", "signal", name.String())
				stop(errStop)
				if count == 2 {
					close(second)
					return
				}
			case <-released:
				return
			}
		}
	}()
	return graceful, second, func() {
		giveBack()
		close(released)
		stop(nil)
	}
}
