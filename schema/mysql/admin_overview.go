package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// Overview looks at everything. A part that takes too long is left out and named; only an
// error of another kind fails the whole.
func (a *Admin) Overview(ctx context.Context) (admin.Overview, error) {
	var o admin.Overview
	err := a.withTable(ctx, func(t *eventTable, ours *ourTables) (err error) {
		o, err = a.overview(ctx, t, ours)
		return err
	})
	if err != nil {
		return admin.Overview{}, fmt.Errorf("overview: %w", err)
	}
	return o, nil
}

// survey is an overview in the making.
type survey struct {
	admin.Overview
	handlers map[string]*admin.HandlerOverview
	registry []admin.HandlerInfo
}

func (a *Admin) overview(ctx context.Context, t *eventTable, ours *ourTables) (admin.Overview, error) {
	s := &survey{handlers: map[string]*admin.HandlerOverview{}}
	for _, part := range []struct {
		name string
		run  func(context.Context, querier) error
	}{
		{"clock", func(ctx context.Context, q querier) (err error) { s.Now, err = a.clock(ctx, q); return err }},
		{"handlers", func(ctx context.Context, q querier) error { return a.known(ctx, q, s) }},
		{"open", func(ctx context.Context, q querier) error { return a.open(ctx, q, s) }},
		{"stuck", func(ctx context.Context, q querier) error {
			return a.closed(ctx, q, s, delivery.Blocked, delivery.Dead)
		}},
		{"ended", func(ctx context.Context, q querier) error {
			return a.closed(ctx, q, s, delivery.Succeeded, delivery.Expired, delivery.Discarded)
		}},
		{"undelivered", func(ctx context.Context, q querier) error { return a.backlog(ctx, q, t, ours, s) }},
		{"unidentifiable", func(ctx context.Context, q querier) error { return a.namelessEvents(ctx, q, t, s) }},
		{"sources", func(ctx context.Context, q querier) error { return a.listSources(ctx, q, s) }},
		{"gaps", func(ctx context.Context, q querier) error { return a.listGaps(ctx, q, s) }},
	} {
		err := a.ask(ctx, func(q querier) error { return part.run(ctx, q) })
		if errors.Is(err, admin.ErrSlow) {
			s.Incomplete = append(s.Incomplete, part.name)
			continue
		}
		if err != nil {
			return admin.Overview{}, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	for _, h := range s.handlers {
		h.Registered = h.Registered || slices.ContainsFunc(s.registry, func(r admin.HandlerInfo) bool { return slices.Contains(r.Aliases, h.Handler) })
		s.Handlers = append(s.Handlers, *h)
	}
	slices.SortFunc(s.Handlers, func(a, b admin.HandlerOverview) int { return strings.Compare(a.Handler, b.Handler) })
	return s.Overview, nil
}

// entry finds or makes the entry of a stored name.
func (s *survey) entry(name string) *admin.HandlerOverview {
	if s.handlers[name] == nil {
		s.handlers[name] = &admin.HandlerOverview{Handler: name, States: map[delivery.State]admin.Count{}}
	}
	return s.handlers[name]
}

func (a *Admin) known(ctx context.Context, q querier, s *survey) (err error) {
	if s.registry, err = a.registered(ctx, q, ""); err != nil {
		return err
	}
	for _, r := range s.registry {
		h := s.entry(r.Name)
		h.Registered, h.Paused = true, r.Paused
	}
	return nil
}

// alongClaims leads from a handler's name and a state to the deliveries, by due time. The optimizer
// would rather read the table while that is small, and does not notice how it grows.
const alongClaims = " FORCE INDEX (" + claimIndex + ")"

// pair is a stored handler name and a state that it has deliveries in.
type pair struct {
	name  string
	state delivery.State
}

// pairs goes from one pair to the next through the index, without reading what is between.
func (a *Admin) pairs(ctx context.Context, q querier, states ...delivery.State) ([]pair, error) {
	list, err := collect(ctx, q, func(rows *sql.Rows) (p pair, err error) {
		err = rows.Scan(&p.name, &p.state)
		return p, err
	}, "SELECT d.handler_name, d.state FROM "+a.names.deliveries+" AS d"+alongClaims+" GROUP BY d.handler_name, d.state")
	return slices.DeleteFunc(list, func(p pair) bool { return !slices.Contains(states, p.state) }), err
}

// open looks at no more than the count limit of each pair, those that are due first.
func (a *Admin) open(ctx context.Context, q querier, s *survey) error {
	pairs, err := a.pairs(ctx, q, delivery.Pending, delivery.Failed)
	if err != nil {
		return err
	}
	for _, p := range pairs {
		var n, leased, oldest int64
		if err := q.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(x.lease_until > `+a.now+`), 0), COALESCE(`+a.since("MIN(x.created_date)")+`, 0)
FROM (SELECT d.lease_until, d.created_date FROM `+a.names.deliveries+" AS d"+alongClaims+`
      WHERE d.handler_name = ? AND d.state = ? ORDER BY d.next_retry_at LIMIT ?) AS x`, p.name, string(p.state), a.cfg.CountLimit).
			Scan(&n, &leased, &oldest); err != nil {
			return err
		}
		h := s.entry(p.name)
		h.States[p.state] = a.counted(n)
		for _, other := range []delivery.State{delivery.Pending, delivery.Failed} {
			if _, ok := h.States[other]; !ok {
				h.States[other] = admin.Count{} // known to be none
			}
		}
		h.Leased += leased
		h.Oldest = max(h.Oldest, time.Duration(oldest)*time.Microsecond)
	}
	return nil
}

// closed counts deliveries that nobody claims, by reading the index alone.
func (a *Admin) closed(ctx context.Context, q querier, s *survey, states ...delivery.State) error {
	pairs, err := a.pairs(ctx, q, states...)
	if err != nil {
		return err
	}
	for _, p := range pairs {
		var n int64
		if err := q.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM "+a.names.deliveries+" AS d"+alongClaims+`
WHERE d.handler_name = ? AND d.state = ? LIMIT ?) AS x`, p.name, string(p.state), a.cfg.CountLimit).Scan(&n); err != nil {
			return err
		}
		s.entry(p.name).States[p.state] = a.counted(n)
	}
	return nil
}

// waitingEvent is an event that no path has fanned out.
type waitingEvent struct {
	id, typ string
	// age in microseconds, 0 for a table without a date.
	age int64
}

// backlog counts events that no path has fanned out, and those of them that somebody wants.
func (a *Admin) backlog(ctx context.Context, q querier, t *eventTable, o *ourTables, s *survey) error {
	age := "0"
	if t.Columns.Date != "" {
		age = "COALESCE(" + a.since(t.timestamp(t.Columns.Date)) + ", 0)"
	}
	b := (&statement{}).add("SELECT " + t.text(t.Columns.ID) + ", " + bytesOf(t.text(t.Columns.Type)) + ", " + age + " FROM " + t.from + " AS t WHERE " + t.waiting(a.now))
	if t.sifted() && t.key().kind != kindText {
		// Of all rows, look at those that are most likely pending.
		b.add(" ORDER BY " + t.ref(t.Columns.ID) + " DESC")
	}
	events, err := query(ctx, q, b.add(" LIMIT ?", a.cfg.CountLimit), func(rows *sql.Rows) (e waitingEvent, err error) {
		var key string
		err = rows.Scan(textTarget{&key}, textTarget{&e.typ}, &e.age)
		e.id, _ = schema.EventID(t.QualifiedName(), key)
		return e, err
	})
	if err != nil {
		return err
	}
	more := len(events) >= a.cfg.CountLimit
	if t.sifted() {
		ids := make([]string, len(events))
		for i, e := range events {
			ids[i] = e.id
		}
		states, err := a.states(ctx, q, o, ids)
		if err != nil {
			return err
		}
		events = slices.DeleteFunc(events, func(e waitingEvent) bool { return states[e.id] != nil })
	}
	for _, e := range events {
		s.Undelivered.N++
		if slices.ContainsFunc(s.registry, func(h admin.HandlerInfo) bool { return wants(h.Types, e.typ) }) {
			s.Wanted.N++
			s.OldestWanted = max(s.OldestWanted, time.Duration(e.age)*time.Microsecond)
		}
	}
	s.Undelivered.More, s.Wanted.More = more, more
	return nil
}

// wants says whether one of the patterns, such as "order.*", is true of the type.
func wants(patterns []string, typ string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, open := strings.CutSuffix(p, "*")
		return p == "*" || p == typ || open && strings.HasSuffix(prefix, ".") && strings.HasPrefix(typ, prefix)
	})
}

// namelessEvents counts undelivered events without a key, which can have no delivery.
func (a *Admin) namelessEvents(ctx context.Context, q querier, t *eventTable, s *survey) error {
	if k := t.key(); k.notNull && k.kind != kindText && k.kind != kindBytes {
		return nil
	}
	var n int64
	if err := q.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM "+t.from+" AS t WHERE "+t.waiting(a.now)+" AND "+t.nameless()+" LIMIT ?) AS x",
		a.cfg.CountLimit).Scan(&n); err != nil {
		return err
	}
	s.Unidentifiable = a.counted(n)
	return nil
}

func (a *Admin) listSources(ctx context.Context, q querier, s *survey) (err error) {
	s.Sources, err = collect(ctx, q, func(rows *sql.Rows) (r admin.SourceStatus, err error) {
		var silent int64
		err = rows.Scan(&r.Name, &r.Owner, &r.Mode, &r.Detail, &r.Position, dateTarget{&r.Updated}, &silent)
		r.Silent = max(0, time.Duration(silent)*time.Microsecond)
		return r, err
	}, "SELECT s.name, s.owner, s.mode, s.detail, s.position, s.updated_date, "+a.since("s.updated_date")+" FROM "+a.names.sources+" AS s ORDER BY s.name")
	return err
}

func (a *Admin) listGaps(ctx context.Context, q querier, s *survey) (err error) {
	s.Gaps, err = collect(ctx, q, func(rows *sql.Rows) (g admin.OpenGap, err error) {
		err = rows.Scan(&g.Source, &g.Reason, &g.Detail, &g.From, &g.To, dateTarget{&g.Detected})
		return g, err
	}, "SELECT g.source, g.reason, g.detail, g.from_position, g.to_position, g.detected_date FROM "+a.names.gaps+
		" AS g WHERE g.closed_date IS NULL ORDER BY g.id LIMIT 100")
	return err
}
