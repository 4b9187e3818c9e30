package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// httpBudget bounds how long requests may go on when the process ends.
const httpBudget = 2 * time.Second

// listenOff in http.listen serves nothing.
const listenOff = "off"

// A httpServer serves what a process tells of itself.
type httpServer struct {
	server *http.Server // nil: switched off
	done   chan struct{}
}

// serve begins to listen. An address that is taken is an error: a probe would ask
// somebody else.
func (r *runner) serve(ctx context.Context) (*httpServer, error) {
	listen := r.config.HTTP.Listen
	if listen == listenOff {
		return &httpServer{}, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen: %w: each process on a machine needs an address of its own, or off", err)
	}
	s := &httpServer{
		server: &http.Server{
			Handler:           r.handler(),
			ReadHeaderTimeout: 5 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       time.Minute,
			ErrorLog:          slog.NewLogLogger(r.logger.Handler(), slog.LevelWarn),
		},
		done: make(chan struct{}),
	}
	r.logger.Info("serving /metrics, /livez and /readyz", "address", listener.Addr().String())
	go func() {
		defer close(s.done)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			r.logger.Error("the HTTP server has ended", "error", err)
		}
	}()
	return s, nil
}

// close ends the server.
func (s *httpServer) close() error {
	if s.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), httpBudget)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.server.Close() // a scrape that hangs is no failure
	}
	<-s.done
	return err
}

// readiness is the body of /readyz.
type readiness struct {
	Ready    bool      `json:"ready"`
	Problems []problem `json:"problems"`
}

func (r *runner) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.metrics.registry, promhttp.HandlerOpts{Registry: r.metrics.registry}))
	// Live as long as the process answers: what ends for good ends the process, and a
	// restart cures nothing that is waited for.
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]bool{"live": true})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		found := r.health.problems()
		status := http.StatusOK
		if len(found) > 0 {
			status = http.StatusServiceUnavailable
		}
		answer(w, status, readiness{Ready: len(found) == 0, Problems: append([]problem{}, found...)})
	})
	return mux
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // a client that has gone away is no failure
}
