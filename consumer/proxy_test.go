package consumer_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// fault is what a proxy does to a COMMIT.
type fault int

const (
	passOn      fault = iota
	dropReply         // the server commits, and its answer is lost
	dropRequest       // the server never sees the COMMIT
)

// A pgProxy stands between a pool and Postgres. It reads the protocol far enough to
// see a COMMIT go by, and cuts connections.
type pgProxy struct {
	t        *testing.T
	listener net.Listener
	target   string
	closed   atomic.Bool // refuses connections
	commits  atomic.Int64
	sessions sync.WaitGroup

	mu     sync.Mutex
	faults []fault // for the next COMMITs, in turn
	conns  map[net.Conn]bool
}

// throughProxy returns a pool whose connections go through a proxy.
func (r *rig) throughProxy() (*pgxpool.Pool, *pgProxy) {
	r.t.Helper()
	config, err := pgxpool.ParseConfig(r.db.DSN)
	if err != nil {
		r.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	p := &pgProxy{
		t: r.t, listener: listener, conns: map[net.Conn]bool{},
		target: net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port))),
	}
	go p.accept()
	address := listener.Addr().(*net.TCPAddr)
	config.ConnConfig.Host, config.ConnConfig.Port = address.IP.String(), uint16(address.Port)
	config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = nil, nil
	// Statements without names: the proxy sees the text of each.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(r.t.Context(), config)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		pool.Close()
		_ = listener.Close()
		p.cut()
		p.sessions.Wait()
	})
	return pool, p
}

// next says what happens to the next COMMITs.
func (p *pgProxy) next(faults ...fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, faults...)
}

func (p *pgProxy) takeFault() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.faults) == 0 {
		return passOn
	}
	f := p.faults[0]
	p.faults = p.faults[1:]
	return f
}

// left is how many faults have not happened yet.
func (p *pgProxy) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.faults)
}

// cut closes every connection.
func (p *pgProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *pgProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.closed.Load() {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.sessions.Go(func() { p.serve(client, server) })
	}
}

func (p *pgProxy) serve(client, server net.Conn) {
	var silent atomic.Bool // answers are read and thrown away
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		p.answers(client, server, &silent)
	}()
	p.requests(client, server, &silent, answered)
	_ = client.Close()
	_ = server.Close()
	<-answered
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

// requests forwards what the client sends, message by message.
func (p *pgProxy) requests(client, server net.Conn, silent *atomic.Bool, answered chan struct{}) {
	if head, body, err := readFrame(client, false); err != nil || write(server, head, body) != nil {
		return
	}
	parsed, bound := "", ""
	for {
		head, body, err := readFrame(client, true)
		if err != nil {
			return
		}
		switch head[0] {
		case 'P':
			_, rest, _ := bytes.Cut(body, []byte{0})
			text, _, _ := bytes.Cut(rest, []byte{0})
			parsed = string(text)
		case 'B':
			bound = parsed
		case 'E':
			if bound != "commit" {
				break
			}
			p.commits.Add(1)
			switch p.takeFault() { //nolint:exhaustive // passOn does nothing
			case dropRequest:
				return
			case dropReply:
				silent.Store(true)
				if write(server, head, body) != nil || write(server, []byte{'S', 0, 0, 0, 4}, nil) != nil {
					return
				}
				<-answered // the server has said COMMIT
				return
			}
		}
		if write(server, head, body) != nil {
			return
		}
	}
}

// answers forwards what the server sends. When silent it reads on until the server
// says COMMIT.
func (p *pgProxy) answers(client, server net.Conn, silent *atomic.Bool) {
	for {
		head, body, err := readFrame(server, true)
		if err != nil {
			_ = client.Close()
			return
		}
		if silent.Load() {
			if head[0] == 'C' && bytes.HasPrefix(body, []byte("COMMIT")) || head[0] == 'E' {
				return
			}
			continue
		}
		if write(client, head, body) != nil {
			_ = server.Close()
			return
		}
	}
}

// readFrame reads one message; the first of a client has no type.
func readFrame(from io.Reader, typed bool) (head, body []byte, err error) {
	head = make([]byte, 5)
	if !typed {
		head = head[:4]
	}
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, nil, err
	}
	body = make([]byte, binary.BigEndian.Uint32(head[len(head)-4:])-4)
	_, err = io.ReadFull(from, body)
	return head, body, err
}

func write(to io.Writer, head, body []byte) error {
	_, err := to.Write(append(head, body...))
	return err
}
