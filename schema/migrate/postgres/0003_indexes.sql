{{- define "index" -}}
-- A build that was interrupted leaves an index that nothing uses and IF NOT EXISTS finds.
-- +goose StatementBegin
DO $do$
BEGIN
    SET LOCAL lock_timeout = '5s';
    IF EXISTS (
        SELECT FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = {{.SchemaText}} AND c.relname = '{{.Name}}' AND NOT i.indisvalid
    ) THEN
        DROP INDEX {{.Schema}}.{{.Name}};
    END IF;
{{- if not .Concurrently}}
    -- PostgreSQL cannot build the index of a partitioned table without stopping its writers.
    CREATE INDEX IF NOT EXISTS {{.Name}}
        ON {{.Schema}}.{{.On}};
{{- end}}
END
$do$;
-- +goose StatementEnd
{{- if .Concurrently}}

CREATE INDEX CONCURRENTLY IF NOT EXISTS {{.Name}}
    ON {{.Schema}}.{{.On}};
{{- end}}
{{end -}}
-- +goose NO TRANSACTION
-- +goose Up
-- Built without stopping writers where the server can, so each statement must run outside a transaction.
{{- if .Events}}

{{template "index" .Index "idx_events_action_id" "events (action_id)"}}
{{template "index" .Index "events_undelivered" "events (event_type, event_date) WHERE delivered = FALSE"}}
{{- end}}

{{template "index" .Index "event_notifications_due" "event_notifications (next_retry_at) WHERE state IN ('PENDING', 'FAILED')"}}
{{template "index" .Index "event_notifications_claim" "event_notifications (handler_name, next_retry_at) WHERE state IN ('PENDING', 'FAILED')"}}
{{template "index" .Index "event_notifications_stuck" "event_notifications (handler_name, state, reason) WHERE state IN ('BLOCKED', 'DEAD')"}}
-- +goose Down
-- The published indexes stay with their tables.
DROP INDEX CONCURRENTLY IF EXISTS {{.Schema}}.event_notifications_stuck;
DROP INDEX CONCURRENTLY IF EXISTS {{.Schema}}.event_notifications_claim;
