package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/server"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

func TestHandlerCounts(t *testing.T) {
	o := admin.Overview{Handlers: []admin.HandlerOverview{
		{Handler: "billing", Oldest: time.Hour, States: map[delivery.State]admin.Count{
			delivery.Pending: {N: 1}, delivery.Failed: {N: 2}, delivery.Dead: {N: 3, More: true}, delivery.Blocked: {N: 4},
		}},
		{Handler: "mail", States: map[delivery.State]admin.Count{delivery.Succeeded: {N: 9, More: true}}},
	}, Incomplete: []string{"ended"}}
	got, err := handlerCounts(o)
	if err != nil {
		t.Fatal(err)
	}
	want := []server.HandlerCounts{
		{Handler: "billing", Pending: 1, Retrying: 2, Dead: 3, Blocked: 4, Capped: true, OldestAge: time.Hour},
		{Handler: "mail"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	// What could not be counted is not zero.
	for _, part := range []string{"handlers", "open", "stuck"} {
		o.Incomplete = []string{"ended", part}
		if got, err := handlerCounts(o); !errors.Is(err, admin.ErrSlow) {
			t.Errorf("without %s: %v, %v", part, got, err)
		}
	}
}

func TestFirstLook(t *testing.T) {
	after := func(d time.Duration, err error) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(d):
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	unmigrated := &failure{exit: exitDatabase, code: codeNotMigrated, message: "x"}
	for name, c := range map[string]struct {
		checks []func(context.Context) error
		took   time.Duration
		refuse bool
	}{
		"all ready":                        {[]func(context.Context) error{after(time.Second, nil), after(0, nil)}, time.Second, false},
		"one hangs":                        {[]func(context.Context) error{after(time.Hour, nil), after(time.Second, nil)}, time.Second + answerTime, false},
		"the only one is slow and refuses": {[]func(context.Context) error{after(lookTimeout, unmigrated)}, lookTimeout, true},
		"another one refuses a bit later":  {[]func(context.Context) error{after(0, nil), after(answerTime/2, unmigrated)}, answerTime / 2, true},
		"away":                             {[]func(context.Context) error{after(0, errors.New("away")), after(time.Second, errors.New("away"))}, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				err := firstLook(t.Context(), c.checks)
				if took := time.Since(start); took != c.took || errors.Is(err, unmigrated) != c.refuse {
					t.Errorf("after %s: %v; want %s, refused %v", took, err, c.took, c.refuse)
				}
			})
		})
	}
}

// silentListener takes connections and never says anything. left is closed when the first one has gone.
func silentListener(t *testing.T) (address string, left chan struct{}) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	left = make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
			if n == 0 {
				close(left)
			}
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String(), left
}

// A database that hangs must not make an orchestrator believe that the process does.
func TestRun_IsHealthyWhileADatabaseIsSilent(t *testing.T) {
	silent, left := silentListener(t)
	listen := freeAddress(t)
	file := filepath.Join(t.TempDir(), "cdc-dispatcher.yaml")
	writeFile(t, file, `version: 1
sources: [{name: shop, dsn: "postgres://app@`+silent+`/shop?sslmode=disable"}]
handlers: [{name: log, on: ["*"], logger: }]
server: {listen: "`+listen+`"}
`)
	a := &app{out: io.Discard, err: io.Discard, lookup: os.LookupEnv}
	cfg, err := a.load(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx, cfg) }()
	testdb.WaitFor(t, "/healthz to answer", func() bool {
		resp, err := http.Get("http://" + listen + "/healthz") //nolint:noctx // a test's own address
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	select {
	case <-left:
		t.Error("it answered only after the database had been given up")
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A signal that comes before the address is resolved is no reason to ask for a free port.
func TestRun_StopBeforeListening(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := &dispatcher{cfg: &config.Config{}, log: slog.New(slog.DiscardHandler), metrics: server.NewMetrics("1", "go1")}
	d.cfg.Server.Listen = "localhost:0"
	if err := d.serve(ctx); err != nil {
		t.Error(err)
	}
}

// Of several sources that fail, each is explained.
func TestExplain_SeveralSources(t *testing.T) {
	var words strings.Builder
	a := &app{err: &words, lookup: os.LookupEnv}
	err := joined([]error{nil, &failure{exit: exitDatabase, code: codeAuth, message: "source a: no", try: "this"}, nil, failed(codeBusy, "that", "source b: no")})
	exit := a.explain(errors.Join(err, nil))
	if want := "error CD4002: source a: no\nTry: this\nerror CD4006: source b: no\nTry: that\n"; exit != exitDatabase || words.String() != want {
		t.Errorf("exit %d, %q", exit, words.String())
	}
	if err := joined([]error{nil, nil}); err != nil {
		t.Error(err)
	}
}

// clerk notes the orders to retry.
type clerk struct {
	operator
	orders []admin.Retry
}

func (c *clerk) RetryDeliveries(_ context.Context, r admin.Retry) (admin.Done, error) {
	c.orders = append(c.orders, r)
	return admin.Done{Count: 1, More: true, At: time.Unix(int64(len(c.orders)), 0)}, nil
}

func TestRetry_LaterOrdersKnowTheFirst(t *testing.T) {
	c, reset := &clerk{}, true
	apply := retryOnce(&reset)
	for range 3 {
		if _, err := apply(t.Context(), desk{operator: c}, admin.Order{}, admin.Filter{}); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range []time.Time{{}, time.Unix(1, 0), time.Unix(1, 0)} {
		if o := c.orders[n]; !o.Before.Equal(want) || !o.ResetAttempts {
			t.Errorf("order %d: %+v, want those before %s", n, o, want)
		}
	}
}
