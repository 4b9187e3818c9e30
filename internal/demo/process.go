package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// A process is the second consumer, as its parent sees it.
type process struct {
	cmd     *exec.Cmd
	input   io.WriteCloser // the worker ends when this does
	started chan struct{}  // closed when it consumes
	holding chan int       // gets the number of orders written and not committed
	ended   chan struct{}  // closed when the process is gone
	err     error          // why; set before ended is closed
}

// startProcess starts a worker. It is in a process group of its own: a Ctrl-C in
// the terminal is the parent's affair, which then ends the worker.
func startProcess(cmd *exec.Cmd, w workerOrder, log io.Writer) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = log
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the second consumer: %w", err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the second consumer: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the second consumer: %w", err)
	}
	p := &process{cmd: cmd, input: input, started: make(chan struct{}), holding: make(chan int, 1), ended: make(chan struct{})}
	go p.watch(output)
	if err := json.NewEncoder(input).Encode(w); err != nil {
		p.kill()
		return nil, fmt.Errorf("start the second consumer: %w", errors.Join(err, p.err))
	}
	return p, nil
}

// hold makes the worker stop in the middle of a batch, after so many messages.
func (p *process) hold(after int) error {
	if err := json.NewEncoder(p.input).Encode(holdOrder{HoldAfter: after}); err != nil {
		return fmt.Errorf("tell consumer 2 to stop in a batch: %w", err)
	}
	return nil
}

// watch reads what the worker tells, then waits for its end.
func (p *process) watch(output io.Reader) {
	defer close(p.ended)
	var told error
	events := json.NewDecoder(output)
	for {
		var e workerEvent
		if err := events.Decode(&e); err != nil {
			break
		}
		switch e.Event {
		case eventStarted:
			close(p.started)
		case eventHolding:
			p.holding <- e.Written
		case eventFailed:
			told = errors.New(e.Error)
		}
	}
	p.err = errors.Join(told, p.cmd.Wait())
}

// pid is the worker's process number.
func (p *process) pid() int { return p.cmd.Process.Pid }

// kill sends SIGKILL, waits until the process is gone, and reports whether it was
// that which ended it. It may be called again.
func (p *process) kill() bool {
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = p.input.Close()
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
