package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// SchemaError says what our tables lack.
type SchemaError struct {
	// Missing lists tables as "table x", columns as "column x.y", and columns of another
	// type as "column x.y (is a, not b)".
	Missing []string
	// Statement mends what can be mended by adding columns; empty when a table is
	// missing, which takes a migration.
	Statement string
}

func (e *SchemaError) Error() string {
	msg := "the schema is not up to date: missing " + strings.Join(e.Missing, ", ")
	if e.Statement != "" {
		msg += "; run: " + e.Statement
	}
	return msg
}

// ourColumns are the tables and columns that the statements of this package use, with the types
// that the migrations give them.
func ourColumns() []struct{ table, columns string } {
	return []struct{ table, columns string }{
		{"event_notifications", `id uuid, event_id uuid, handler_name character varying, namespace character varying,
			action_id uuid, action_name character varying, action_params jsonb, started_date timestamp without time zone,
			completion_date timestamp without time zone, model_id character varying, model_type character varying,
			event_type character varying, payload jsonb, event_date timestamp without time zone, state character varying,
			attempts integer, next_retry_at timestamp without time zone, created_date timestamp without time zone,
			updated_date timestamp without time zone, lease_token uuid, lease_until timestamp without time zone, lease_owner text,
			claim_count integer, lost_claims integer, reason text, last_error text, finished_date timestamp without time zone,
			retried_date timestamp without time zone, partition_key text,
			payload_raw bytea, traceparent text, headers jsonb`},
		{"event_notification_attempts", `delivery_id uuid, id bigint, attempt integer, outcome character varying, reason text, error text,
			message text, started_date timestamp without time zone, duration_us bigint`},
		{"handlers", `name character varying, aliases text[], types text[], generation bigint, last_owner text,
			last_seen timestamp without time zone, paused_by text, pause_reason text, paused_date timestamp without time zone,
			created_date timestamp without time zone`},
		{"sources", `name text, owner text, mode text, detail text, position text, updated_date timestamp without time zone,
			looked_date timestamp without time zone`},
		{"gaps", `id bigint, source text, reason text, detail text, from_position text, to_position text,
			detected_date timestamp without time zone, closed_date timestamp without time zone`},
		{"audit_log", `id bigint, happened_date timestamp without time zone, actor text, action text, target text, affected bigint,
			reason text, detail jsonb`},
	}
}

// CheckSchema says whether the tables are there and as the store needs them. What our own tables lack is a
// [*SchemaError]; what is wrong with the mapping of the event table is [schema.Problems].
func (s *Store) CheckSchema(ctx context.Context) error {
	have, err := s.catalog(ctx)
	if err != nil {
		return fmt.Errorf("check schema %s: %w", s.schema, err)
	}
	var (
		lacks    SchemaError
		alter    []string
		noTables bool
	)
	for _, table := range ourColumns() {
		columns, ok := have[table.table]
		if !ok {
			lacks.Missing, noTables = append(lacks.Missing, "table "+s.schema+"."+table.table), true
			continue
		}
		for column := range strings.SplitSeq(table.columns, ",") {
			name, typ, _ := strings.Cut(strings.TrimSpace(column), " ")
			switch is, ok := columns[name]; {
			case !ok:
				lacks.Missing = append(lacks.Missing, "column "+table.table+"."+name)
				alter = append(alter, fmt.Sprintf("ALTER TABLE %s ADD COLUMN IF NOT EXISTS %s %s;",
					pgx.Identifier{s.schema, table.table}.Sanitize(), name, typ))
			case is != typ:
				lacks.Missing = append(lacks.Missing, fmt.Sprintf("column %s.%s (is %s, not %s)", table.table, name, is, typ))
			}
		}
	}
	if !noTables {
		missing, statements, err := s.missingIndexes(ctx)
		if err != nil {
			return fmt.Errorf("check schema %s: %w", s.schema, err)
		}
		lacks.Missing, alter = append(lacks.Missing, missing...), append(alter, statements...)
	}
	if len(lacks.Missing) > 0 {
		if !noTables {
			lacks.Statement = strings.Join(alter, " ")
		}
		return &lacks
	}
	// A fresh look at the event table, which becomes the one that is used.
	t, err := s.describe(ctx)
	if err != nil {
		return fmt.Errorf("look up event table %s: %w", s.table.QualifiedName(), err)
	}
	s.mu.Lock()
	s.events = t
	s.mu.Unlock()
	return nil
}

// missingIndexes looks for the two indexes of the delivery table without which the store gives wrong
// results, or none in time.
func (s *Store) missingIndexes(ctx context.Context) (missing, statements []string, err error) {
	var unique, claim bool
	err = s.queryRow(ctx, `
SELECT coalesce(bool_or(i.indisunique AND i.indpred IS NULL AND i.indnkeyatts = 2 AND k.columns = '{event_id,handler_name}'), false),
       coalesce(bool_or(i.indnkeyatts = 2 AND k.columns = '{handler_name,next_retry_at}'), false)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT array_agg(a.attname::text ORDER BY u.place) AS columns
    FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (attnum, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = u.attnum
) AS k
WHERE n.nspname = $1::text AND c.relname = 'event_notifications' AND i.indisvalid`, s.schema).Scan(&unique, &claim)
	if err != nil {
		return nil, nil, err
	}
	if !unique {
		missing = append(missing, "unique index event_notifications (event_id, handler_name)")
		statements = append(statements, "CREATE UNIQUE INDEX CONCURRENTLY ON "+s.sql.deliveries+" (event_id, handler_name);")
	}
	if !claim {
		missing = append(missing, "index event_notifications (handler_name, next_retry_at)")
		statements = append(statements, "CREATE INDEX CONCURRENTLY event_notifications_claim ON "+s.sql.deliveries+
			" (handler_name, next_retry_at) WHERE state IN ('PENDING', 'FAILED');")
	}
	return missing, statements, nil
}

// catalog lists the columns of all tables in our schema, with their types.
func (s *Store) catalog(ctx context.Context) (map[string]map[string]string, error) {
	rows, err := s.query(ctx, `
SELECT c.relname, a.attname, format_type(a.atttypid, -1)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped`, s.schema)
	if err != nil {
		return nil, err
	}
	have := map[string]map[string]string{}
	var table, column, typ string
	_, err = pgx.ForEachRow(rows, []any{&table, &column, &typ}, func() error {
		if have[table] == nil {
			have[table] = map[string]string{}
		}
		have[table][column] = typ
		return nil
	})
	return have, err
}
