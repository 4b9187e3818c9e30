package cli

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A gate is an address behind which nothing answers until it is opened; then what
// connects is passed on.
type gate struct {
	t        *testing.T
	listener net.Listener
	work     sync.WaitGroup

	mu     sync.Mutex
	target string
	opened bool
	conns  []net.Conn
}

func newGate(t *testing.T, target string) *gate {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{t: t, listener: listener, target: target}
	g.work.Go(g.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		g.mu.Lock()
		for _, conn := range g.conns {
			_ = conn.Close()
		}
		g.mu.Unlock()
		g.work.Wait()
	})
	return g
}

func (g *gate) address() string { return g.listener.Addr().String() }

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened = true
}

func (g *gate) openTo(target string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.target, g.opened = target, true
}

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.mu.Lock()
		target, opened := g.target, g.opened
		g.mu.Unlock()
		if !opened {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		g.mu.Lock()
		g.conns = append(g.conns, client, server)
		g.mu.Unlock()
		g.work.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
		g.work.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
	}
}
