package e2e

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// A gate is a TCP proxy that can hold what clients send: what they have asked
// then is neither refused nor answered.
type gate struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu     sync.Mutex
	opened *sync.Cond
	at     []byte // close when a client sends this
	shut   bool
	closed bool // for good
	conns  []net.Conn
	// Reached is closed when the gate has shut itself.
	reached chan struct{}
}

func newGate(t *testing.T, target string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: listener, target: target, reached: make(chan struct{})}
	g.opened = sync.NewCond(&g.mu)
	g.running.Go(g.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		g.mu.Lock()
		g.closed, g.shut = true, false
		for _, conn := range g.conns {
			_ = conn.Close()
		}
		g.opened.Broadcast()
		g.mu.Unlock()
		g.running.Wait()
	})
	return g
}

func (g *gate) address() string { return g.listener.Addr().String() }

// shutAt shuts the gate before the first message in which a client says text.
func (g *gate) shutAt(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = []byte(text)
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	g.opened.Broadcast()
}

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", g.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		g.mu.Lock()
		g.conns = append(g.conns, client, server)
		g.mu.Unlock()
		g.running.Go(func() { g.copy(server, client, g.pass) })
		g.running.Go(func() { g.copy(client, server, func([]byte) {}) })
	}
}

func (g *gate) copy(to, from net.Conn, pass func([]byte)) {
	defer to.Close()
	chunk := make([]byte, 64<<10)
	for {
		n, err := from.Read(chunk)
		if n > 0 {
			pass(chunk[:n])
			if _, err := to.Write(chunk[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until the gate is open for what a client says.
func (g *gate) pass(said []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at != nil && bytes.Contains(said, g.at) {
		g.at, g.shut = nil, true
		close(g.reached)
	}
	for g.shut && !g.closed {
		g.opened.Wait()
	}
}
