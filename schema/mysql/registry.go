package mysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// handlerRow is a row of the registry.
type handlerRow struct {
	delivery.Handler
	pause delivery.Pause
}

// lists reads the lists of a handler. Whether the column is a JSON document or a text does not matter.
func (h *handlerRow) lists(aliases, types []byte) error {
	if err := json.Unmarshal(aliases, &h.Aliases); err != nil {
		return err
	}
	return json.Unmarshal(types, &h.Types)
}

// jsonList is a list as it is stored.
func jsonList(list []string) string {
	cleaned := make([]string, len(list))
	for i, item := range list {
		cleaned[i] = clean(item)
	}
	text, err := json.Marshal(cleaned)
	if err != nil { // strings always marshal
		return "[]"
	}
	return string(text)
}

// SyncHandlers implements pipeline.RegistryStore. The generation counts changes of the subscription, so
// that two versions of a program that take turns are noticed.
func (s *Store) SyncHandlers(ctx context.Context, owner string, handlers []delivery.Handler) (delivery.Registry, error) {
	registry := delivery.Registry{}
	sorted := slices.Clone(handlers)
	slices.SortFunc(sorted, func(a, b delivery.Handler) int { return strings.Compare(a.Name, b.Name) })
	err := s.change(ctx, func(q querier) (err error) {
		if registry.Paused, err = s.register(ctx, q, clean(owner), sorted); err != nil {
			return err
		}
		registry.Others, err = s.others(ctx, q, clean(owner))
		return err
	})
	if err != nil {
		return delivery.Registry{}, fmt.Errorf("record the handlers of this process: %w", err)
	}
	return registry, nil
}

// register records who serves what. A pause comes along when a handler is renamed: it is taken over
// from any alias. All rows are locked first, in the order of their names, so that an order to
// resume, which ends both pauses, is not undone by a registration that began before it.
func (s *Store) register(ctx context.Context, q querier, owner string, handlers []delivery.Handler) (map[string]delivery.Pause, error) {
	paused := map[string]delivery.Pause{}
	if len(handlers) == 0 {
		return paused, nil
	}
	// The rows must be there before they can be locked.
	b := (&statement{}).add("INSERT INTO " + s.names.handlers + " (name, aliases, types, generation, last_owner, last_seen, created_date) VALUES ")
	var names []any
	for i, h := range handlers {
		if i > 0 {
			b.add(", ")
		}
		b.add("(?, ?, ?, 1, ?, "+s.now+", "+s.now+")", h.Name, jsonList(h.Aliases), jsonList(h.Types), owner)
		names = append(names, h.Name)
		for _, alias := range h.Aliases {
			names = append(names, alias)
		}
	}
	b.add(" ON DUPLICATE KEY UPDATE generation = " + s.names.handlers + ".generation")
	if err := b.exec(ctx, q); err != nil {
		return nil, err
	}
	b = (&statement{}).add("SELECT name, aliases, types, COALESCE(paused_by, ''), COALESCE(pause_reason, ''), CAST(paused_date AS CHAR) FROM " +
		s.names.handlers + " FORCE INDEX (PRIMARY) WHERE name IN ").list(names).add(" ORDER BY name FOR UPDATE")
	rows, err := query(ctx, q, b, func(rows *sql.Rows) (h handlerRow, err error) {
		var aliases, types []byte
		if err = rows.Scan(&h.Name, &aliases, &types, &h.pause.By, &h.pause.Reason, dateTarget{&h.pause.At}); err == nil {
			err = h.lists(aliases, types)
		}
		return h, err
	})
	if err != nil {
		return nil, err
	}
	known := make(map[string]handlerRow, len(rows))
	for _, h := range rows {
		known[h.Name] = h
	}
	return paused, s.refresh(ctx, q, owner, handlers, known, paused)
}

// refresh brings the rows up to date, all in one statement.
func (s *Store) refresh(
	ctx context.Context, q querier, owner string, handlers []delivery.Handler, known map[string]handlerRow, paused map[string]delivery.Pause,
) error {
	rows := make([][]any, len(handlers))
	for i, h := range handlers {
		is := known[h.Name]
		if is.pause.At.IsZero() {
			is.pause = inherited(h, known)
		}
		if !is.pause.At.IsZero() {
			paused[h.Name] = is.pause
		}
		changed := jsonList(is.Aliases) != jsonList(h.Aliases) || jsonList(is.Types) != jsonList(h.Types)
		rows[i] = []any{
			h.Name, jsonList(h.Aliases), jsonList(h.Types), flag(changed), orNull(is.pause.By), orNull(is.pause.Reason), timeText(is.pause.At),
		}
	}
	b := (&statement{}).add("UPDATE (")
	union(b, "? AS name, ? AS aliases, ? AS types, ? AS changed, ? AS by_whom, ? AS why, ? AS at", rows)
	b.add(") AS o STRAIGHT_JOIN "+s.names.handlers+" AS h FORCE INDEX (PRIMARY) ON h.name = o.name SET h.aliases = o.aliases, h.types = o.types, "+
		"h.generation = h.generation + o.changed, h.last_owner = ?, h.last_seen = "+s.now+
		", h.paused_by = o.by_whom, h.pause_reason = o.why, h.paused_date = CAST(o.at AS DATETIME(6))", owner)
	return b.exec(ctx, q)
}

// inherited is the oldest pause of the handler's aliases.
func inherited(h delivery.Handler, known map[string]handlerRow) (pause delivery.Pause) {
	for _, alias := range slices.Sorted(slices.Values(h.Aliases)) {
		if p := known[alias].pause; !p.At.IsZero() && (pause.At.IsZero() || p.At.Before(pause.At)) {
			pause = p
		}
	}
	return pause
}

// others lists the handlers that somebody else has served lately.
func (s *Store) others(ctx context.Context, q querier, owner string) ([]delivery.Handler, error) {
	return collect(ctx, q, func(rows *sql.Rows) (delivery.Handler, error) {
		var h handlerRow
		var aliases, types []byte
		err := rows.Scan(&h.Name, &aliases, &types)
		if err == nil {
			err = h.lists(aliases, types)
		}
		return h.Handler, err
	}, "SELECT name, aliases, types FROM "+s.names.handlers+" WHERE last_owner <> ? AND last_seen > "+s.now+
		" - INTERVAL ? MICROSECOND ORDER BY name", owner, micros(delivery.HandlerLive))
}

// BlockOrphans implements pipeline.RegistryStore. Every delivery that was due for the whole of grace
// counts, whoever wrote it.
func (s *Store) BlockOrphans(ctx context.Context, grace time.Duration) (int, error) {
	n, err := s.step(ctx, step{
		find: func(q querier, o *ourTables, leftOut []any) ([]uuid.UUID, error) {
			unserved, err := s.unserved(ctx, q, grace)
			if err != nil {
				return nil, err
			}
			return s.found(ctx, q, o, unserved, openStates(), "d.next_retry_at <= "+s.now+" - INTERVAL ? MICROSECOND", []any{micros(grace)}, leftOut)
		},
		// A process may have started since.
		still: func(q querier) (*statement, error) {
			unserved, err := s.unserved(ctx, q, grace)
			if err != nil {
				return nil, err
			}
			names := make([]any, len(unserved))
			for i, name := range unserved {
				names[i] = name
			}
			return (&statement{}).add(s.stillDue() + " AND d.handler_name IN ").list(names), nil
		},
		set: (&statement{}).add("state = 'BLOCKED', reason = 'no_handler', lease_token = NULL, lease_until = NULL, lease_owner = NULL, updated_date = " + s.now),
	})
	if err != nil {
		return n, fmt.Errorf("block deliveries without a handler: %w", err)
	}
	return n, nil
}

// unserved lists the handlers that deliveries are there for and that no process has served for the grace
// period. The names are found by skipping through the index from one to the next.
func (s *Store) unserved(ctx context.Context, q querier, grace time.Duration) ([]string, error) {
	names, err := skipThrough(ctx, q, "SELECT d.handler_name FROM "+s.names.deliveries+" AS d FORCE INDEX ("+claimIndex+
		") WHERE d.handler_name > ? ORDER BY d.handler_name LIMIT 1")
	if err != nil {
		return nil, err
	}
	served := map[string]bool{}
	_, err = collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
		var h handlerRow
		var aliases []byte
		err := rows.Scan(&h.Name, &aliases)
		if err == nil {
			err = json.Unmarshal(aliases, &h.Aliases)
		}
		for _, name := range append(h.Aliases, h.Name) {
			served[name] = true
		}
		return struct{}{}, err
	}, "SELECT name, aliases FROM "+s.names.handlers+" WHERE last_seen > "+s.now+" - INTERVAL ? MICROSECOND", micros(grace))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return served[name] }), nil
}

// found lists deliveries of the handlers in the states, along the claim's index.
func (s *Store) found(
	ctx context.Context, q querier, o *ourTables, handlers []string, states []delivery.State, condition string, args, leftOut []any,
) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	for _, name := range handlers {
		for _, state := range states {
			b := (&statement{}).add("SELECT "+o.id.text("d.id")+" FROM "+s.names.deliveries+" AS d FORCE INDEX ("+claimIndex+
				") WHERE d.handler_name = ? AND d.state = ? AND ", name, string(state)).add(condition, args...)
			if len(leftOut) > 0 {
				b.add(" AND d.id NOT IN ").list(leftOut)
			}
			b.add(" ORDER BY d.next_retry_at LIMIT ?", stepSize-len(ids))
			list, err := query(ctx, q, b, scanID)
			if err != nil {
				return nil, err
			}
			if ids = append(ids, list...); len(ids) >= stepSize {
				return ids, nil
			}
		}
	}
	return ids, nil
}

// Unblock implements pipeline.RegistryStore. The wait of the deliveries counts from now (Q33), and so does their
// retry window, which may have passed while nobody served the handler.
func (s *Store) Unblock(ctx context.Context, names []string) (int, error) {
	n, err := s.step(ctx, step{
		find: func(q querier, o *ourTables, leftOut []any) ([]uuid.UUID, error) {
			return s.found(ctx, q, o, names, []delivery.State{delivery.Blocked}, "d.reason = 'no_handler'", nil, leftOut)
		},
		still: condition("d.state = 'BLOCKED' AND d.reason = 'no_handler'"),
		set: (&statement{}).add("state = 'PENDING', reason = NULL, last_error = NULL, finished_date = NULL, next_retry_at = " + s.now +
			", retried_date = " + s.now + ", updated_date = " + s.now),
	})
	if err != nil {
		return n, fmt.Errorf("unblock deliveries: %w", err)
	}
	return n, nil
}

// ShortenLeases implements pipeline.RegistryStore.
func (s *Store) ShortenLeases(ctx context.Context, longest time.Duration) (int, error) {
	latest := s.now + " + INTERVAL ? MICROSECOND"
	us := micros(longest)
	n, err := s.step(ctx, step{
		find: func(q querier, o *ourTables, leftOut []any) ([]uuid.UUID, error) {
			b := (&statement{}).add("SELECT "+o.id.text("d.id")+" FROM "+s.names.deliveries+" AS d WHERE d.next_retry_at > "+latest+
				" AND d.lease_until > "+latest+" AND d.state IN ('PENDING', 'FAILED')", us, us)
			if len(leftOut) > 0 {
				b.add(" AND d.id NOT IN ").list(leftOut)
			}
			return query(ctx, q, b.add(" LIMIT ?", stepSize), scanID)
		},
		still: condition("d.state IN ('PENDING', 'FAILED') AND d.lease_until > "+latest, us),
		set:   (&statement{}).add("lease_until = "+latest+", next_retry_at = "+latest+", updated_date = "+s.now, us, us),
	})
	if err != nil {
		return n, fmt.Errorf("shorten leases: %w", err)
	}
	return n, nil
}
