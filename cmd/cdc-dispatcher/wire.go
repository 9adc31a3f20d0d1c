package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/logger"
	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// wiring is one source and all that hangs on it, built and not started.
type wiring struct {
	source   config.Source
	handlers []config.Handler
	db       *database
	store    tables
	pipeline pipeline.Config
	closers  []io.Closer
}

// wire builds everything that the configuration describes. It connects to nothing.
// What cannot be built is config.Problems.
func wire(cfg *config.Config, log *slog.Logger, observe func(config.Source, []config.Handler) pipeline.Observer) (ws []*wiring, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(ws))
			ws = nil
		}
	}()
	for i, s := range cfg.Sources {
		w := &wiring{source: s, handlers: cfg.HandlersOf(s.Name)}
		ws = append(ws, w)
		if err := w.build(cfg, fmt.Sprintf("sources[%d]", i), log, observe); err != nil {
			return ws, err
		}
	}
	return ws, nil
}

// build makes the parts of one source. path is where it stands in the file.
func (w *wiring) build(cfg *config.Config, path string, log *slog.Logger, observe func(config.Source, []config.Handler) pipeline.Observer) (err error) {
	s := w.source
	log = ofSource(log, s.Name)
	problem := func(at string, err error) error {
		return config.Problems{cfg.Problem(config.CodeConflict, at, at+": "+oneLine(err.Error()), "change the setting")}
	}
	if w.db, err = openDatabase(s); err != nil {
		return problem(path+".dsn", err)
	}
	if w.store, err = w.db.tables(log); err != nil {
		return problem(path+".table", err)
	}
	w.pipeline = pipeline.Config{
		Source: s.Name, Owner: owner(), Store: w.store,
		FanOut: s.FanOut, Poller: s.Poller, Lease: cfg.Lease, ShutdownTimeout: cfg.ShutdownTimeout,
		OrphanGrace: cfg.OrphanGrace, MaxPayload: cfg.MaxPayload, StoreErrorMessages: cfg.StoreErrorMessages,
		Logger: log, Observer: observe(s, w.handlers),
	}
	if s.Mode != config.ModePoll {
		if w.pipeline.Log, err = w.db.reader(w.pipeline.Owner, log); err != nil {
			return problem(path, err)
		}
		w.pipeline.Table, w.pipeline.Decode = s.Table.QualifiedName(), s.Table.Decoder()
	}
	for _, h := range w.handlers {
		to, err := newHandler(h, log)
		if err != nil {
			return problem(h.Path()+"."+h.Kind(), err)
		}
		if c, ok := to.(io.Closer); ok {
			w.closers = append(w.closers, c)
		}
		w.pipeline.Handlers = append(w.pipeline.Handlers, h.Pipeline(to))
	}
	if err := w.pipeline.Validate(); err != nil {
		return problem(path, err)
	}
	return nil
}

// close releases what build made. It comes after the pipeline has ended.
func (w *wiring) close() error {
	var errs []error
	for _, c := range w.closers {
		errs = append(errs, c.Close())
	}
	if w.db != nil {
		errs = append(errs, w.db.close())
	}
	return errors.Join(errs...)
}

func closeAll(ws []*wiring) error {
	var errs []error
	for _, w := range ws {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}

// owner names this process in leases, and as the reader of a log.
func owner() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host[:min(len(host), 64)], os.Getpid(), uuid.NewString()[:8])
}

// newHandler makes a handler of its kind: the one switch from kinds to constructors.
func newHandler(h config.Handler, log *slog.Logger) (event.Handler, error) {
	switch h.Kind() {
	case config.KindWebhook:
		return webhook.New(*h.Webhook)
	case config.KindLogger:
		return logger.New(logger.Config{Logger: log, Level: slogLevel(h.Logger.Level), Payload: h.Logger.Payload})
	}
	return nil, fmt.Errorf("kind %s has no constructor", h.Kind())
}

// tryOut builds everything that a configuration describes and lets it go again.
func (a *app) tryOut(cfg *config.Config) error {
	ws, err := wire(cfg, slog.New(slog.DiscardHandler), func(config.Source, []config.Handler) pipeline.Observer { return pipeline.NopObserver{} })
	if err != nil {
		return err
	}
	return closeAll(ws)
}
