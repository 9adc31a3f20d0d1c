// Command receiver shows the webhooks that arrive: one line each on standard
// output, and all of them as JSON at GET /. It is what the compose file puts at
// the other end, and a start for a receiver of your own: it checks the
// signature, and it takes a delivery that comes again for what it is.
//
//	RECEIVER_LISTEN   address, default :8090
//	RECEIVER_SECRET   "whsec_…" of the sender; empty takes unsigned requests too
//
// `receiver -health` asks a receiver on this machine whether it is up, for a
// container's health check.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
)

const (
	maxBody = 10 << 20 // bytes of one request
	maxKept = 10_000   // deliveries that GET / shows, the latest
)

func main() {
	health := flag.Bool("health", false, "ask the receiver on this machine whether it is up")
	flag.Parse()
	listen := cmp.Or(os.Getenv("RECEIVER_LISTEN"), ":8090")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := serve
	if *health {
		run = ask
	}
	if err := run(ctx, listen); err != nil {
		fmt.Fprintln(os.Stderr, "receiver:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, listen string) error {
	server := &http.Server{
		Addr:              listen,
		Handler:           newReceiver(os.Stdout, os.Getenv("RECEIVER_SECRET")),
		ReadHeaderTimeout: 5 * time.Second,
	}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		stopped <- server.Shutdown(grace)
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

func ask(ctx context.Context, listen string) error {
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("it answers %s", resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}

// delivery is one webhook-id and what came with it.
type delivery struct {
	ID       string          `json:"id"`
	Arrivals int             `json:"arrivals"` // above 1: the sender did not see an earlier answer
	First    time.Time       `json:"first"`
	Body     json.RawMessage `json:"body"`
}

// receiver keeps the latest deliveries by id, in the order of their first
// arrival.
type receiver struct {
	secret string
	out    io.Writer

	mu   sync.Mutex
	kept []*delivery
	byID map[string]*delivery
}

func newReceiver(out io.Writer, secret string) http.Handler {
	r := &receiver{secret: secret, out: out, byID: map[string]*delivery{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /{$}", r.list)
	mux.HandleFunc("POST /", r.take)
	return mux
}

func (r *receiver) take(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		http.Error(w, "body too large or cut off", http.StatusBadRequest)
		return
	}
	if r.secret != "" {
		if err := webhook.Verify(req.Header, body, time.Now(), r.secret); err != nil {
			http.Error(w, "signature does not verify", http.StatusUnauthorized)
			return
		}
	}
	id := req.Header.Get("webhook-id")
	if id == "" {
		http.Error(w, "no webhook-id", http.StatusBadRequest)
		return
	}
	if !json.Valid(body) {
		body, _ = json.Marshal(string(body)) // a string always has a JSON form
	}
	r.keep(id, body)
	w.WriteHeader(http.StatusNoContent)
}

func (r *receiver) keep(id string, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.byID[id]
	if d == nil {
		d = &delivery{ID: id, First: time.Now().UTC(), Body: body}
		r.byID[id] = d
		r.kept = append(r.kept, d)
		if len(r.kept) > maxKept {
			delete(r.byID, r.kept[0].ID)
			r.kept = r.kept[1:]
		}
	}
	d.Arrivals++
	// The line is for eyes only: a reader that went away costs no delivery.
	_, _ = fmt.Fprintf(r.out, "%s %s arrival %d %s\n", time.Now().UTC().Format(time.TimeOnly), id, d.Arrivals, body)
}

func (r *receiver) list(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	text, err := json.MarshalIndent(append([]*delivery{}, r.kept...), "", "  ")
	r.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // the client may have gone
}
