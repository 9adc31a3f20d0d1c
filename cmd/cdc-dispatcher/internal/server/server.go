package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// headerTimeout bounds the reading of a request, answerTimeout that of the answer.
	headerTimeout = 5 * time.Second
	answerTimeout = 15 * time.Second
	// stopTimeout bounds the requests that are running when the server stops.
	stopTimeout = 2 * time.Second
)

// Config describes a [Server].
type Config struct {
	// Listen is "host:port"; port 0 takes a free one. Required.
	Listen string
	// Sources are what /readyz reports about.
	Sources []Source
	// Metrics is what /metrics shows. Required.
	Metrics prometheus.Gatherer
	// Logger may be nil, which is silent.
	Logger *slog.Logger
}

// Server answers probes and scrapes.
type Server struct {
	cfg      Config
	listener net.Listener
	http     *http.Server
}

// Listen opens the port, so that a port in use is known at the start. The caller
// must call Run, or Close.
func Listen(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	s := &Server{cfg: cfg, listener: listener}
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      answerTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Addr is where the server listens, with the port that was chosen.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Run answers requests until ctx ends, and returns nil after those that were
// running have ended, or two seconds later.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(s.listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", s.cfg.Listen, err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.http.Shutdown(stop); err != nil {
		_ = s.http.Close() // cuts what did not end in time; there is nobody left to tell
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", s.cfg.Listen, err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Metrics, promhttp.HandlerOpts{
		// One series that cannot be read must not hide the others.
		ErrorHandling: promhttp.ContinueOnError,
		Timeout:       answerTimeout - time.Second,
	}))
	return mux
}

// healthz says that the process lives. It asks nobody.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, http.StatusOK, map[string]bool{"alive": true})
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready   bool              `json:"ready"`
	Sources []sourceReadiness `json:"sources"`
}

type sourceReadiness struct {
	Name    string   `json:"name"`
	Ready   bool     `json:"ready"`
	Mode    string   `json:"mode"`
	Reasons []string `json:"reasons"`
}

// readyz says whether every source does its work; ?source=NAME asks about one.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	only := r.URL.Query().Get("source")
	answer := readiness{Ready: true, Sources: []sourceReadiness{}}
	for _, src := range s.cfg.Sources {
		if only != "" && only != src.Name {
			continue
		}
		report := src.Report()
		ready, reasons := report.Ready()
		one := sourceReadiness{Name: src.Name, Ready: ready, Mode: string(report.Mode()), Reasons: reasons}
		if report.Waiting != "" {
			one.Mode = "waiting"
		}
		if one.Reasons == nil {
			one.Reasons = []string{}
		}
		answer.Ready = answer.Ready && ready
		answer.Sources = append(answer.Sources, one)
	}
	status := http.StatusOK
	switch {
	case only != "" && len(answer.Sources) == 0:
		answer.Ready, status = false, http.StatusNotFound
	case !answer.Ready:
		status = http.StatusServiceUnavailable
	}
	s.answer(w, status, answer)
}

func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil && !errors.Is(err, context.Canceled) {
		s.cfg.Logger.Debug("answer a probe", slog.Any("err", err))
	}
}
