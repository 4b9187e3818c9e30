package localproc

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken below the range that kernels give to outgoing connections
// (Linux from 32768, macOS from 49152). A port that was free a moment ago
// could otherwise become the local end of somebody's connection before the
// server binds it, or while a restarted server is down.
const (
	firstPort = 20000
	lastPort  = 31999
)

// FreePort returns a port that nobody listens on at 127.0.0.1. Another process
// may still take it first; who starts a server tries again with another one.
func FreePort() (int, error) {
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort+1) //nolint:gosec // no secret, only not the same as the neighbour
		if PortFree(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 between %d and %d found in 200 tries", firstPort, lastPort)
}

// PortFree tells whether a server could bind the port at 127.0.0.1 now.
func PortFree(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}
