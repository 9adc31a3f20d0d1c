package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// syncHandlersSQL records who serves what. The generation counts changes of the
// subscription, so that two versions of a program that take turns are noticed.
//
// A pause comes along when a handler is renamed: it is taken over from any alias, which is locked
// so that an order to resume, which ends both, is not undone by a registration that began before it.
const syncHandlersSQL = `
WITH served AS MATERIALIZED (
    SELECT s.name, ARRAY(SELECT jsonb_array_elements_text(s.aliases::jsonb)) AS aliases,
           ARRAY(SELECT jsonb_array_elements_text(s.types::jsonb)) AS types
    FROM unnest($1::text[], $2::text[], $3::text[]) AS s (name, aliases, types)
), former AS MATERIALIZED (
    SELECT f.name, f.paused_by, f.pause_reason, f.paused_date
    FROM {handlers} AS f
    WHERE f.paused_date IS NOT NULL AND f.name IN (SELECT unnest(s.aliases) FROM served AS s)
    ORDER BY f.name
    FOR SHARE
)
INSERT INTO {handlers} AS h (name, aliases, types, generation, last_owner, last_seen, created_date, paused_by, pause_reason, paused_date)
SELECT s.name, s.aliases, s.types, 1, $4::text, c.now, c.now, p.paused_by, p.pause_reason, p.paused_date
FROM served AS s
LEFT JOIN LATERAL (SELECT f.* FROM former AS f WHERE f.name = ANY (s.aliases) ORDER BY f.paused_date, f.name LIMIT 1) AS p ON true
CROSS JOIN (SELECT {now} AS now FROM (SELECT count(*) FROM former) AS after_former) AS c
ORDER BY s.name
ON CONFLICT (name) DO UPDATE SET
    generation = h.generation
        + CASE WHEN h.aliases IS DISTINCT FROM EXCLUDED.aliases OR h.types IS DISTINCT FROM EXCLUDED.types THEN 1 ELSE 0 END,
    aliases = EXCLUDED.aliases,
    types = EXCLUDED.types,
    last_owner = EXCLUDED.last_owner,
    last_seen = EXCLUDED.last_seen,
    paused_by = CASE WHEN h.paused_date IS NULL THEN EXCLUDED.paused_by ELSE h.paused_by END,
    pause_reason = CASE WHEN h.paused_date IS NULL THEN EXCLUDED.pause_reason ELSE h.pause_reason END,
    paused_date = COALESCE(h.paused_date, EXCLUDED.paused_date)
RETURNING h.name, COALESCE(h.paused_by, ''), COALESCE(h.pause_reason, ''), h.paused_date`

// othersSQL lists the handlers that somebody else has served within $2.
const othersSQL = `
SELECT h.name, h.aliases, h.types FROM {handlers} AS h
WHERE h.last_owner <> $1::text AND h.last_seen > {now} - $2::bigint * interval '1 microsecond'
ORDER BY h.name`

// SyncHandlers implements pipeline.RegistryStore.
func (s *Store) SyncHandlers(ctx context.Context, owner string, handlers []delivery.Handler) (delivery.Registry, error) {
	paused, err := s.register(ctx, owner, handlers)
	if err != nil {
		return delivery.Registry{}, fmt.Errorf("record the handlers of this process: %w", err)
	}
	rows, err := s.query(ctx, s.sql.others, clean(owner), micros(delivery.HandlerLive))
	if err != nil {
		return delivery.Registry{}, fmt.Errorf("look for the handlers of others: %w", err)
	}
	others, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h delivery.Handler, err error) {
		err = row.Scan(&h.Name, &h.Aliases, &h.Types)
		return h, err
	})
	if err != nil {
		return delivery.Registry{}, fmt.Errorf("look for the handlers of others: %w", err)
	}
	return delivery.Registry{Paused: paused, Others: others}, nil
}

func (s *Store) register(ctx context.Context, owner string, handlers []delivery.Handler) (paused map[string]delivery.Pause, err error) {
	sorted := slices.Clone(handlers)
	slices.SortFunc(sorted, func(a, b delivery.Handler) int { return strings.Compare(a.Name, b.Name) })
	var names, aliases, types []string
	for _, h := range sorted {
		names = append(names, h.Name)
		aliases = append(aliases, jsonList(h.Aliases))
		types = append(types, jsonList(h.Types))
	}
	err = again(ctx, func() error {
		paused = map[string]delivery.Pause{}
		rows, err := s.query(ctx, s.sql.syncHandlers, nonNil(names), nonNil(aliases), nonNil(types), clean(owner))
		if err != nil {
			return err
		}
		var (
			name string
			p    delivery.Pause
		)
		_, err = pgx.ForEachRow(rows, []any{&name, &p.By, &p.Reason, timeTarget{&p.At}}, func() error {
			if !p.At.IsZero() {
				paused[name] = p
			}
			return nil
		})
		return err
	})
	return paused, err
}

// jsonList is how a list of lists travels: arrays of PostgreSQL must be rectangular.
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

// stepSize is how many rows a background step changes in one transaction.
const stepSize = 1000

// orphansSQL finds deliveries that have been due for a grace period in which no process
// served their handler. The names are found by skipping through the index from one to the next, not by reading
// all rows.
const orphansSQL = `
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT {now} - $1::bigint * interval '1 microsecond' AS since
), waiting AS (
    (SELECT d.handler_name::text AS name FROM {deliveries} AS d
     WHERE d.state IN ('PENDING', 'FAILED') ORDER BY d.handler_name LIMIT 1)
    UNION ALL
    SELECT (SELECT d.handler_name::text FROM {deliveries} AS d
            WHERE d.state IN ('PENDING', 'FAILED') AND d.handler_name > w.name ORDER BY d.handler_name LIMIT 1)
    FROM waiting AS w WHERE w.name IS NOT NULL
)
SELECT o.id::text
FROM waiting AS w
CROSS JOIN clock AS c
CROSS JOIN LATERAL (
    SELECT d.id FROM {deliveries} AS d
    WHERE d.handler_name = w.name AND d.state IN ('PENDING', 'FAILED') AND d.next_retry_at <= c.since
      AND d.id <> ALL ($2::text[]::uuid[])
    ORDER BY d.next_retry_at
    LIMIT $3::bigint
) AS o
WHERE w.name IS NOT NULL
  AND NOT EXISTS (SELECT FROM {handlers} AS h WHERE (h.name = w.name OR w.name = ANY (h.aliases)) AND h.last_seen > c.since)
LIMIT $3::bigint`

// blockSQL checks again what orphansSQL found, because a process may have started since. Like the other steps it takes
// the rows that are free, waits for none that another session has locked, and returns those that it has changed.
const blockSQL = `
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), target AS MATERIALIZED (
    SELECT d.id
    FROM unnest($1::text[]) AS o (id) CROSS JOIN clock AS c JOIN {deliveries} AS d ON d.id = ANY (ARRAY[o.id::uuid])
    WHERE {open} AND d.next_retry_at <= c.now AND (d.lease_until IS NULL OR d.lease_until <= c.now)
      AND NOT EXISTS (SELECT FROM {handlers} AS h WHERE (h.name = d.handler_name OR d.handler_name = ANY (h.aliases))
                      AND h.last_seen > c.now - $2::bigint * interval '1 microsecond')
    FOR NO KEY UPDATE OF d SKIP LOCKED
)
UPDATE {deliveries} AS d SET
    state = 'BLOCKED', reason = 'no_handler', lease_token = NULL, lease_until = NULL, lease_owner = NULL, updated_date = c.now
FROM target AS o CROSS JOIN clock AS c
WHERE d.id = ANY (ARRAY[o.id])
RETURNING d.id::text`

// stuckSQL finds deliveries that were blocked for want of a handler, by the index that ends with the reason:
// deliveries that are blocked for another reason may be many, and none of them is read.
const stuckSQL = `
SELECT d.id::text FROM {deliveries} AS d
WHERE d.handler_name = ANY ($1::text[]) AND d.state = 'BLOCKED' AND d.reason = 'no_handler' AND d.id <> ALL ($2::text[]::uuid[])
LIMIT $3::bigint`

// reviveSQL makes them due again; their wait counts from now (Q33), and so does their retry window, which
// may have passed while nobody served the handler.
const reviveSQL = `
WITH target AS MATERIALIZED (
    SELECT d.id
    FROM unnest($1::text[]) AS o (id) JOIN {deliveries} AS d ON d.id = ANY (ARRAY[o.id::uuid])
    WHERE d.state || '' = 'BLOCKED' AND d.reason = 'no_handler'
    FOR NO KEY UPDATE OF d SKIP LOCKED
)
UPDATE {deliveries} AS d SET
    state = 'PENDING', reason = NULL, last_error = NULL, finished_date = NULL, next_retry_at = c.now, retried_date = c.now,
    updated_date = c.now
FROM target AS o CROSS JOIN (SELECT {now} AS now) AS c
WHERE d.id = ANY (ARRAY[o.id])
RETURNING d.id::text`

// BlockOrphans implements pipeline.RegistryStore. Every delivery that was due for the whole of grace
// counts, whoever wrote it.
func (s *Store) BlockOrphans(ctx context.Context, grace time.Duration) (int, error) {
	n, err := s.step(ctx,
		func(leftOut []string) ([]string, error) {
			return s.ids(ctx, s.sql.orphans, micros(grace), leftOut, stepSize)
		},
		func(ids []string) ([]string, error) {
			return changeRows(ctx, s, durable, pgx.RowTo[string], s.sql.block, ids, micros(grace))
		})
	if err != nil {
		return n, fmt.Errorf("block deliveries without a handler: %w", err)
	}
	return n, nil
}

// Unblock implements pipeline.RegistryStore.
func (s *Store) Unblock(ctx context.Context, names []string) (int, error) {
	n, err := s.step(ctx,
		func(leftOut []string) ([]string, error) {
			return s.ids(ctx, s.sql.stuck, nonNil(names), leftOut, stepSize)
		},
		func(ids []string) ([]string, error) {
			return changeRows(ctx, s, durable, pgx.RowTo[string], s.sql.revive, ids)
		})
	if err != nil {
		return n, fmt.Errorf("unblock deliveries: %w", err)
	}
	return n, nil
}

// farSQL finds leases that end later than any real one could.
const farSQL = `
SELECT d.id::text FROM {deliveries} AS d
WHERE d.state IN ('PENDING', 'FAILED') AND d.next_retry_at > {now} + $1::bigint * interval '1 microsecond'
  AND d.lease_until > {now} + $1::bigint * interval '1 microsecond' AND d.id <> ALL ($2::text[]::uuid[])
LIMIT $3::bigint`

const shortenSQL = `
WITH clock AS MATERIALIZED (
    SELECT {now} AS now, {now} + $2::bigint * interval '1 microsecond' AS latest
), target AS MATERIALIZED (
    SELECT d.id
    FROM unnest($1::text[]) AS o (id) CROSS JOIN clock AS c JOIN {deliveries} AS d ON d.id = ANY (ARRAY[o.id::uuid])
    WHERE {open} AND d.lease_until > c.latest
    FOR NO KEY UPDATE OF d SKIP LOCKED
)
UPDATE {deliveries} AS d SET lease_until = c.latest, next_retry_at = c.latest, updated_date = c.now
FROM target AS o CROSS JOIN clock AS c
WHERE d.id = ANY (ARRAY[o.id])
RETURNING d.id::text`

// ShortenLeases implements pipeline.RegistryStore.
func (s *Store) ShortenLeases(ctx context.Context, longest time.Duration) (int, error) {
	n, err := s.step(ctx,
		func(leftOut []string) ([]string, error) {
			return s.ids(ctx, s.sql.far, micros(longest), leftOut, stepSize)
		},
		func(ids []string) ([]string, error) {
			return changeRows(ctx, s, durable, pgx.RowTo[string], s.sql.shorten, ids, micros(longest))
		})
	if err != nil {
		return n, fmt.Errorf("shorten leases: %w", err)
	}
	return n, nil
}

// leftOutMost is how many rows a step passes over before it leaves the rest to the next one.
const leftOutMost = 10 * stepSize

// step finds rows and changes them, a batch at a time, until no more are found. What another session has locked, or was
// faster to change, is left out. So is a row that the database refuses to change, which is reported
// to the logger; it stops neither the others nor the step (Q25).
func (s *Store) step(
	ctx context.Context,
	find func(leftOut []string) ([]string, error),
	change func(ids []string) (changed []string, err error),
) (total int, err error) {
	for leftOut := []string{}; len(leftOut) < leftOutMost; {
		ids, err := find(leftOut)
		if err != nil || len(ids) == 0 {
			return total, err
		}
		slices.Sort(ids)
		changed := make(map[string]bool, len(ids))
		bad, err := separately(ids, func(part []string) error {
			return again(ctx, func() error {
				list, err := change(part)
				if err == nil {
					for _, id := range list {
						changed[id] = true
					}
				}
				return err
			})
		})
		total += len(changed)
		if err != nil && !rejected(err) {
			return total, err
		}
		for _, id := range bad {
			s.log.Warn("the database refuses to change a delivery; it is left as it is",
				slog.String("delivery_id", id), slog.String("sqlstate", sqlState(err)))
		}
		leftOut = append(leftOut, slices.DeleteFunc(ids, func(id string) bool { return changed[id] })...)
	}
	return total, nil
}

// ids runs a query that returns one column of text.
func (s *Store) ids(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := s.query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
