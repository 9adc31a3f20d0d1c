{{- define "index" -}}
-- A build that was interrupted leaves an index that nothing uses and IF NOT EXISTS finds.
-- +goose StatementBegin
DO $do$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = {{.SchemaText}} AND c.relname = '{{.Name}}' AND NOT i.indisvalid
    ) THEN
        DROP INDEX {{.Schema}}.{{.Name}};
    END IF;
END
$do$;
-- +goose StatementEnd

CREATE INDEX {{if .Concurrently}}CONCURRENTLY {{end}}IF NOT EXISTS {{.Name}}
    ON {{.Schema}}.{{.On}};
{{end -}}
-- +goose NO TRANSACTION
-- +goose Up
-- Built without blocking writers, so each statement must run outside a transaction.
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
