package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// Overview looks at everything. A part that takes too long is left out and named; only an
// error of another kind fails the whole.
func (a *Admin) Overview(ctx context.Context) (admin.Overview, error) {
	// Looked up first, because it takes a connection of its own.
	table, err := a.eventTable(ctx)
	if err != nil {
		return admin.Overview{}, fmt.Errorf("overview: %w", err)
	}
	o := admin.Overview{}
	handlers := map[string]*admin.HandlerOverview{}
	for _, part := range []struct {
		name string
		run  func(context.Context, pgx.Tx) error
	}{
		{"clock", func(ctx context.Context, tx pgx.Tx) (err error) { o.Now, err = a.now(ctx, tx); return err }},
		{"handlers", func(ctx context.Context, tx pgx.Tx) error { return a.registered(ctx, tx, handlers) }},
		{"open", func(ctx context.Context, tx pgx.Tx) error { return a.open(ctx, tx, handlers) }},
		{"stuck", func(ctx context.Context, tx pgx.Tx) error { return a.stuck(ctx, tx, handlers) }},
		{"ended", func(ctx context.Context, tx pgx.Tx) error { return a.ended(ctx, tx, handlers) }},
		{"undelivered", func(ctx context.Context, tx pgx.Tx) error { return a.backlog(ctx, tx, table, &o) }},
		{"unidentifiable", func(ctx context.Context, tx pgx.Tx) error { return a.nameless(ctx, tx, table, &o) }},
		{"sources", func(ctx context.Context, tx pgx.Tx) error { return a.sources(ctx, tx, &o) }},
		{"gaps", func(ctx context.Context, tx pgx.Tx) error { return a.gaps(ctx, tx, &o) }},
	} {
		err := a.read(ctx, func(tx pgx.Tx) error { return part.run(ctx, tx) })
		if errors.Is(err, admin.ErrSlow) {
			o.Incomplete = append(o.Incomplete, part.name)
			continue
		}
		if err != nil {
			return admin.Overview{}, fmt.Errorf("overview: %s: %w", part.name, err)
		}
	}
	for _, h := range handlers {
		o.Handlers = append(o.Handlers, *h)
	}
	slices.SortFunc(o.Handlers, func(a, b admin.HandlerOverview) int { return strings.Compare(a.Handler, b.Handler) })
	return o, nil
}

// entry finds or makes the entry of a stored name.
func entry(handlers map[string]*admin.HandlerOverview, name string) *admin.HandlerOverview {
	if handlers[name] == nil {
		handlers[name] = &admin.HandlerOverview{Handler: name, States: map[delivery.State]admin.Count{}}
	}
	return handlers[name]
}

func (a *Admin) registered(ctx context.Context, tx pgx.Tx, handlers map[string]*admin.HandlerOverview) error {
	rows, err := tx.Query(ctx, `SELECT h.name, COALESCE(h.paused_by, ''), COALESCE(h.pause_reason, ''), h.paused_date FROM `+a.in("handlers")+` AS h`)
	if err != nil {
		return err
	}
	var name string
	var p delivery.Pause
	_, err = pgx.ForEachRow(rows, []any{&name, &p.By, &p.Reason, clampedTime{&p.At}}, func() error {
		h := entry(handlers, name)
		h.Registered = true
		if !p.At.IsZero() {
			pause := p
			h.Paused = &pause
		}
		return nil
	})
	return err
}

// openSQL goes from name to name through the index on open deliveries, and looks at no more
// than $1 of each. The range and the order leave the planner that index alone: with an equation it may
// take the one on the due time, and read past the deliveries of all other handlers.
const openSQL = `
WITH RECURSIVE names AS (
    (SELECT d.handler_name FROM {deliveries} AS d WHERE d.state IN ('PENDING', 'FAILED') ORDER BY d.handler_name LIMIT 1)
    UNION ALL
    SELECT (SELECT d.handler_name FROM {deliveries} AS d
            WHERE d.state IN ('PENDING', 'FAILED') AND d.handler_name > n.handler_name ORDER BY d.handler_name LIMIT 1)
    FROM names AS n WHERE n.handler_name IS NOT NULL
)
SELECT n.handler_name, o.pending, o.failed, o.leased, COALESCE((extract(epoch FROM {now} - o.oldest) * 1000000)::bigint, 0),
       EXISTS (SELECT FROM {handlers} AS h WHERE n.handler_name = ANY (h.aliases))
FROM names AS n
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE x.state = 'PENDING') AS pending, count(*) FILTER (WHERE x.state = 'FAILED') AS failed,
           count(*) FILTER (WHERE x.lease_until > {now}) AS leased, min(x.created_date) AS oldest
    FROM (SELECT d.state, d.lease_until, d.created_date FROM {deliveries} AS d
          WHERE d.handler_name BETWEEN n.handler_name AND n.handler_name AND d.state IN ('PENDING', 'FAILED')
          ORDER BY d.handler_name, d.next_retry_at LIMIT $1::bigint) AS x
) AS o
WHERE n.handler_name IS NOT NULL`

// withoutBitmaps keeps the planner from bitmaps, which are built whole before the first row, whatever
// the limit.
const withoutBitmaps = "SET LOCAL enable_bitmapscan = off"

func (a *Admin) open(ctx context.Context, tx pgx.Tx, handlers map[string]*admin.HandlerOverview) error {
	if _, err := tx.Exec(ctx, withoutBitmaps); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, a.rendered(openSQL), a.cfg.CountLimit)
	if err != nil {
		return err
	}
	var name string
	var pending, failed, leased, oldest int64
	var alias bool
	_, err = pgx.ForEachRow(rows, []any{&name, &pending, &failed, &leased, &oldest, &alias}, func() error {
		h := entry(handlers, name)
		h.Registered = h.Registered || alias
		more := pending+failed >= int64(a.cfg.CountLimit)
		h.States[delivery.Pending], h.States[delivery.Failed] = admin.Count{N: pending, More: more}, admin.Count{N: failed, More: more}
		h.Leased, h.Oldest = leased, time.Duration(oldest)*time.Microsecond
		return nil
	})
	return err
}

// stuckNamesSQL goes from one (name, state) to the next through the index on deliveries that wait for a person.
const stuckNamesSQL = `
WITH RECURSIVE pairs AS (
    (SELECT d.handler_name, d.state FROM {deliveries} AS d WHERE d.state IN ('BLOCKED', 'DEAD') ORDER BY d.handler_name, d.state LIMIT 1)
    UNION ALL
    SELECT x.handler_name, x.state FROM pairs AS p CROSS JOIN LATERAL (
        SELECT d.handler_name, d.state FROM {deliveries} AS d
        WHERE d.state IN ('BLOCKED', 'DEAD') AND (d.handler_name, d.state) > (p.handler_name, p.state)
        ORDER BY d.handler_name, d.state LIMIT 1) AS x
)
SELECT p.handler_name, p.state, (
    SELECT count(*) FROM (SELECT FROM {deliveries} AS d
        WHERE d.handler_name = p.handler_name AND d.state = p.state AND d.state IN ('BLOCKED', 'DEAD') LIMIT $1::bigint) AS x)
FROM pairs AS p`

func (a *Admin) stuck(ctx context.Context, tx pgx.Tx, handlers map[string]*admin.HandlerOverview) error {
	if _, err := tx.Exec(ctx, withoutBitmaps); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, a.rendered(stuckNamesSQL), a.cfg.CountLimit)
	if err != nil {
		return err
	}
	return a.collectCounts(rows, handlers, func(n int64) bool { return n >= int64(a.cfg.CountLimit) })
}

// endedSQL looks at as many ended deliveries as the limit says, of all handlers together: no index
// leads to them, because nothing but this asks.
const endedSQL = `
SELECT x.handler_name, x.state, count(*)
FROM (SELECT d.handler_name, d.state FROM {deliveries} AS d WHERE d.state IN ('SUCCEEDED', 'EXPIRED', 'DISCARDED') LIMIT $1::bigint) AS x
GROUP BY 1, 2`

func (a *Admin) ended(ctx context.Context, tx pgx.Tx, handlers map[string]*admin.HandlerOverview) error {
	rows, err := tx.Query(ctx, a.rendered(endedSQL), a.cfg.CountLimit)
	if err != nil {
		return err
	}
	var total int64
	if err := a.collectCounts(rows, handlers, func(n int64) bool { total += n; return false }); err != nil {
		return err
	}
	if total < int64(a.cfg.CountLimit) {
		return nil
	}
	// Which ones were looked at is chance, so each number is only the least that there are.
	for _, h := range handlers {
		for _, s := range []delivery.State{delivery.Succeeded, delivery.Expired, delivery.Discarded} {
			h.States[s] = admin.Count{N: h.States[s].N, More: true}
		}
	}
	return nil
}

func (a *Admin) collectCounts(rows pgx.Rows, handlers map[string]*admin.HandlerOverview, more func(int64) bool) error {
	var name string
	var state delivery.State
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&name, &state, &n}, func() error {
		entry(handlers, name).States[state] = admin.Count{N: n, More: more(n)}
		return nil
	})
	return err
}

func (a *Admin) backlog(ctx context.Context, tx pgx.Tx, t *eventTable, o *admin.Overview) error {
	date := "NULL::timestamp"
	if t.Columns.Date != "" {
		date = inRange(t.timestamp(t.Columns.Date))
	}
	typ := parens(t.text(t.Columns.Type))
	var oldest int64
	err := tx.QueryRow(ctx, `
		SELECT count(*), count(*) FILTER (WHERE w.wanted), COALESCE((extract(epoch FROM `+a.sql.now+` - min(w.date) FILTER (WHERE w.wanted)) * 1000000)::bigint, 0)
		FROM (SELECT `+date+` AS date, EXISTS (
		          SELECT FROM `+a.in("handlers")+` AS h CROSS JOIN unnest(h.types) AS p (pattern)
		          WHERE p.pattern = '*' OR p.pattern = `+typ+` OR (p.pattern LIKE '%.*' AND starts_with(`+typ+`, left(p.pattern, -1)))) AS wanted
		      FROM `+t.from+` AS t WHERE `+strings.Join([]string{t.pending(), t.typed(), t.recent(t.now)}, " AND ")+`
		      LIMIT $1::bigint) AS w`, a.cfg.CountLimit).Scan(&o.Undelivered.N, &o.Wanted.N, &oldest)
	o.Undelivered.More = o.Undelivered.N >= int64(a.cfg.CountLimit)
	o.Wanted.More = o.Undelivered.More
	o.OldestWanted = max(0, time.Duration(oldest)*time.Microsecond)
	return err
}

func (a *Admin) nameless(ctx context.Context, tx pgx.Tx, t *eventTable, o *admin.Overview) error {
	err := tx.QueryRow(ctx, t.unidentifiable, a.cfg.CountLimit).Scan(&o.Unidentifiable.N)
	o.Unidentifiable.More = o.Unidentifiable.N >= int64(a.cfg.CountLimit)
	return err
}

func (a *Admin) sources(ctx context.Context, tx pgx.Tx, o *admin.Overview) error {
	rows, err := tx.Query(ctx, `SELECT s.name, s.owner, s.mode, s.detail, s.position, s.updated_date,
		(extract(epoch FROM `+a.sql.now+` - s.updated_date) * 1000000)::bigint FROM `+a.in("sources")+` AS s ORDER BY s.name`)
	if err != nil {
		return err
	}
	o.Sources, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s admin.SourceStatus, err error) {
		var silent int64
		err = row.Scan(&s.Name, &s.Owner, &s.Mode, &s.Detail, &s.Position, clampedTime{&s.Updated}, &silent)
		s.Silent = max(0, time.Duration(silent)*time.Microsecond)
		return s, err
	})
	return err
}

func (a *Admin) gaps(ctx context.Context, tx pgx.Tx, o *admin.Overview) error {
	rows, err := tx.Query(ctx, `SELECT g.source, g.reason, g.detail, g.from_position, g.to_position, g.detected_date
		FROM `+a.in("gaps")+` AS g WHERE g.closed_date IS NULL ORDER BY g.id LIMIT 100`)
	if err != nil {
		return err
	}
	o.Gaps, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g admin.OpenGap, err error) {
		err = row.Scan(&g.Source, &g.Reason, &g.Detail, &g.From, &g.To, clampedTime{&g.Detected})
		return g, err
	})
	return err
}

// rendered fills in the names of our tables and the clock.
func (a *Admin) rendered(sql string) string {
	return strings.NewReplacer("{now}", a.sql.now, "{deliveries}", a.sql.deliveries, "{handlers}", a.in("handlers")).Replace(sql)
}

// clocked fills in the clock.
func (a *Admin) clocked(sql string) string { return strings.ReplaceAll(sql, "{now}", a.sql.now) }
