package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// world is a real database with the product's tables.
type world struct {
	*testdb.DB
	t testing.TB
}

func newWorld(t *testing.T, major int) *world {
	t.Helper()
	w := &world{DB: testdb.Postgres(t, major), t: t}
	m, err := migrate.Postgres(w.Pool(), migrate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// onPostgres runs a test on every server, in parallel with the others.
func onPostgres(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		fn(t, newWorld(t, major))
	})
}

// store opens the SQL store on a pool of its own, as another process would.
func (w *world) store(dsn string) *postgres.Store {
	w.t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(pool.Close)
	return openStore(w.t, pool)
}

func openStore(t testing.TB, pool *pgxpool.Pool) *postgres.Store {
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

const utcNow = "(clock_timestamp() AT TIME ZONE 'UTC')"

// add inserts n due deliveries, as the published table's own fan-out job does.
func (w *world) add(handler string, n int) []uuid.UUID {
	w.t.Helper()
	rows, err := w.Pool().Query(context.Background(), `
		INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
			started_date, completion_date, event_type, payload, event_date, state, attempts, next_retry_at, created_date, updated_date)
		SELECT gen_random_uuid(), gen_random_uuid(), $1, 'shop', gen_random_uuid(), 'Pay', '{}', n, n, 'paid', '{"n": 1}', n, 'PENDING', 0, n, n, n
		FROM generate_series(1, $2), (SELECT `+utcNow+` AS n) AS c RETURNING id::text`, handler, n)
	if err != nil {
		w.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (uuid.UUID, error) {
		var id string
		err := row.Scan(&id)
		return uuid.MustParse(id), err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return ids
}

// pgRow is what matters of a delivery row.
type pgRow struct {
	State              delivery.State
	Attempts, Claims   int
	Token              string
	Leased, Due        bool
	Reason, Error      string
	Delay, LeaseFor    time.Duration
	Claimed, WholeText string
}

// row reads a delivery. Delay and LeaseFor are counted from the row's last change,
// by the database's clock.
func (w *world) row(id uuid.UUID) (r pgRow) {
	w.t.Helper()
	var delay, lease float64
	err := w.Pool().QueryRow(context.Background(), `
		SELECT state, attempts, COALESCE(claim_count, 0), COALESCE(lease_token::text, ''),
			COALESCE(lease_until > `+utcNow+`, false), next_retry_at <= `+utcNow+`, COALESCE(reason, ''), COALESCE(last_error, ''),
			extract(epoch FROM next_retry_at - updated_date)::float8, COALESCE(extract(epoch FROM lease_until - updated_date), 0)::float8, n::text
		FROM eventlog.event_notifications AS n WHERE id = $1::text::uuid`, id.String()).
		Scan(&r.State, &r.Attempts, &r.Claims, &r.Token, &r.Leased, &r.Due, &r.Reason, &r.Error, &delay, &lease, &r.WholeText)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Delay = time.Duration(delay*1e6) * time.Microsecond
	r.LeaseFor = time.Duration(lease*1e6) * time.Microsecond
	return r
}

// states counts deliveries by state.
func (w *world) states() map[delivery.State]int {
	w.t.Helper()
	rows, err := w.Pool().Query(context.Background(), "SELECT state, count(*) FROM eventlog.event_notifications GROUP BY state")
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[delivery.State]int{}
	var state delivery.State
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { out[state] = n; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return out
}

// waitFor waits until so many deliveries are in a state.
func (w *world) waitFor(n int, state delivery.State) {
	w.t.Helper()
	testdb.WaitFor(w.t, fmt.Sprintf("%d deliveries to be %s", n, state), func() bool { return w.states()[state] >= n })
}

// noClaims is a store whose claims do not get through.
type noClaims struct {
	outcomeStore
	on *atomic.Bool
}

func (s noClaims) Claim(ctx context.Context, l delivery.Lease, c []delivery.Claim) (delivery.ClaimResult, error) {
	if s.on.Load() {
		return delivery.ClaimResult{}, errors.New("no route to host")
	}
	return s.outcomeStore.Claim(ctx, l, c)
}

// withConn runs fn on a connection of its own.
func (w *world) withConn(dsn string, fn func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }() // nothing is left in it
	return fn(conn)
}

// gate holds handlers back until it is opened, once or more often.
type gate struct {
	c    chan struct{}
	open func()
}

func newGate() gate {
	c := make(chan struct{})
	return gate{c, sync.OnceFunc(func() { close(c) })}
}
