package demo_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claimq/claimq/internal/demo"
	"github.com/claimq/claimq/internal/localproc"
)

func TestARunOf2000OrdersHolds(t *testing.T) {
	t.Parallel()
	var pid int
	account, err := demo.Run(t.Context(), demo.Config{Orders: 2000, Seed: 7, Worker: worker, Progress: &telling{t: t, said: func(line string) {
		_, _ = fmt.Sscanf(line, "consumer 2 joins the group: process %d", &pid)
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range account.Broken {
		t.Error(broken)
	}
	if account.Sent != 2000 || account.RepeatsDropped != 200 || account.Retried != 20 || account.Effects != account.AppliedOnce ||
		account.Lost != 0 || account.Doubled != 0 || account.DeadPublished != 22 || account.KilledWith < 2 || account.PerSecond <= 0 {
		t.Errorf("account %+v", account)
	}
	if pid == 0 || localproc.Alive(pid) {
		t.Errorf("the second consumer, process %d, is not gone", pid)
	}
}

// telling passes on what a run says.
type telling struct {
	t    *testing.T
	said func(line string)
	mu   sync.Mutex
	done int
}

func (p *telling) Say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	p.t.Log(line)
	if p.said != nil {
		p.said(line)
	}
}

func (p *telling) Done(done, all int, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done < 0 || done > all {
		p.t.Errorf("%d of %d done; %s", done, all, detail)
	}
	p.done = done
}

func (p *telling) Close() {}

func TestARunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"starting a Postgres", "consumer 1 starts", "consumer 2 joins", "comparing"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			stop := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			account, err := demo.Run(ctx, demo.Config{Orders: 300, Worker: worker, Progress: &telling{t: t, said: func(line string) {
				if strings.HasPrefix(line, at) {
					cancel(stop)
				}
			}}})
			if !errors.Is(err, stop) || account != nil {
				t.Errorf("account %v, error %v; want none and the context's cause", account, err)
			}
		})
	}
}

func TestASecondConsumerThatEndsByItselfIsToldWithItsReason(t *testing.T) {
	t.Parallel()
	_, err := demo.Run(t.Context(), demo.Config{Orders: 300, Progress: &telling{t: t}, Worker: func() *exec.Cmd {
		return exec.Command("/bin/sh", "-c", `read line; echo '{"event":"failed","error":"no such luck"}'; echo 'a line of log' >&2; exit 3`)
	}})
	if err == nil || !strings.Contains(err.Error(), "consumer 2 ended by itself") || !strings.Contains(err.Error(), "no such luck") || !strings.Contains(err.Error(), "a line of log") {
		t.Errorf("error %v: it does not tell what became of consumer 2", err)
	}
}

func TestARunInWhichNothingHappensIsGivenUp(t *testing.T) {
	t.Parallel()
	_, err := demo.Run(t.Context(), demo.Config{Orders: 300, Patience: 2 * time.Second, Progress: &telling{t: t}, Worker: func() *exec.Cmd {
		return exec.Command("/bin/sh", "-c", `while read line; do :; done`) // joins nothing
	}})
	var stuck *demo.StuckError
	if !errors.As(err, &stuck) || !strings.Contains(stuck.Waiting, "consumer 2 has not been given partitions") || stuck.Log == "" {
		t.Errorf("error %v", err)
	}
}

func TestAWorkerWithoutAnOrderSaysWhoStartsIt(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{"nothing": "", "no JSON": "hello\n"} {
		var out bytes.Buffer
		err := demo.RunWorker(t.Context(), strings.NewReader(in), &out, &bytes.Buffer{}, demo.Given{})
		if err == nil || !strings.Contains(err.Error(), "started by `claimq demo`") || !strings.Contains(out.String(), `"event":"failed"`) {
			t.Errorf("%s: error %v, told %q", name, err, out.String())
		}
	}
}

func TestAConfigThatCannotWorkIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]demo.Config{
		"too few":   {Orders: demo.MinOrders - 1, Worker: worker},
		"too many":  {Orders: demo.MaxOrders + 1, Worker: worker},
		"no worker": {},
	} {
		if account, err := demo.Run(t.Context(), config); err == nil || account != nil {
			t.Errorf("%s: account %v, error %v", name, account, err)
		}
	}
}
