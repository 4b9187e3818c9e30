package localproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Spec says how to start a server.
type Spec struct {
	// Path and Args are the binary and its arguments (without the name itself).
	Path string
	Args []string
	// Env is added to the parent's environment; a later value wins.
	Env []string
	// Dir is the working directory.
	Dir string
	// LogFile gets standard output and error, appended. It is opened by the
	// parent, so the account needs no right to create it.
	LogFile string
	// Account is the user to run as; nil for the current one.
	Account *Account
	// Guard ends the server when the parent dies; nil for none.
	Guard *Guard
}

// Process is a running server. Its methods are safe for concurrent use.
type Process struct {
	cmd   *exec.Cmd
	guard *Guard
	done  chan struct{}
	err   error // set before done is closed

	mu     sync.Mutex
	frozen bool
}

// ErrKilled is returned, wrapped, by [Process.Stop] when the server did not end
// in time and had to be killed.
var ErrKilled = errors.New("server did not stop in time and was killed")

// Start starts the server. It does not wait for readiness.
func Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open server log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Dir = spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = spec.Account.SysProcAttr()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	process := &Process{cmd: cmd, guard: spec.Guard, done: make(chan struct{})}
	guardErr := spec.Guard.Watch(cmd.Process.Pid)
	go func() {
		process.err = cmd.Wait()
		_ = process.guard.Watch(0)
		close(process.done)
	}()
	if guardErr != nil {
		process.Kill()
		return nil, guardErr
	}
	return process, nil
}

// PID is the server's process number. It stays the same after the end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the server has ended and is reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running tells whether the server has not ended. A frozen server is running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Err is how the server ended: nil for exit code zero or when it still runs.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}
	return p.err
}

// Signal sends a signal to the server process only. It is no error when the
// server has ended.
func (p *Process) Signal(signal syscall.Signal) error {
	err := p.cmd.Process.Signal(signal)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Stop wakes the server when it is frozen, sends signal, and waits for the
// end. When ctx ends first the whole tree is killed and the error is
// [ErrKilled]. Stopping a server that has ended does nothing.
func (p *Process) Stop(ctx context.Context, signal syscall.Signal) error {
	if err := p.Thaw(); err != nil {
		return err
	}
	if err := p.Signal(signal); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s: %w", p.cmd.Path, ErrKilled)
	}
}

// Kill sends SIGKILL to the server and all its descendants and waits until
// none of them runs. The root goes first: it can then neither fork nor clean up.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Running() {
		return
	}
	// Stopped, the root cannot fork a child that the listing misses.
	_ = p.Signal(syscall.SIGSTOP)
	tree := descendants(p.PID())
	_ = p.Signal(syscall.SIGKILL)
	for _, pid := range tree {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.done
	for _, pid := range tree {
		waitGone(pid)
	}
	p.frozen = false
}

// Freeze stops the server and all its descendants with SIGSTOP, as a paused
// virtual machine would: its sockets stay open and answer nothing.
func (p *Process) Freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Running() {
		return fmt.Errorf("freeze %s: it has ended", p.cmd.Path)
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	p.frozen = true
	for _, pid := range descendants(p.PID()) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// Thaw wakes what [Process.Freeze] stopped; it does nothing otherwise.
func (p *Process) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.frozen || !p.Running() {
		return nil
	}
	for _, pid := range descendants(p.PID()) {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	p.frozen = false
	return p.Signal(syscall.SIGCONT)
}

// waitGone waits until a killed process of somebody else's no longer runs, at
// most five seconds. A zombie that nobody reaps counts as gone: it holds no
// socket, file or memory.
func waitGone(pid int) {
	for range 500 {
		if !Alive(pid) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
