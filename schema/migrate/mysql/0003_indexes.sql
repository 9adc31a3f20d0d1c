-- +goose NO TRANSACTION
-- +goose Up
-- Built without blocking writers. There are no partial indexes here: the claim's has
-- the state before the due time, so that rows of one state come in the order of the due
-- time and none beyond the limit is locked.
SET SESSION lock_wait_timeout = 5;
{{- if .Events}}

{{.AddIndex "events" "idx_events_action_id" "action_id"}}

{{.AddIndex "events" "events_pending_fanout" "delivered, event_type, event_date"}}
{{- end}}

{{.AddIndex "event_notifications" "event_notifications_due" "next_retry_at"}}

{{.AddIndex "event_notifications" "event_notifications_claim" "handler_name, state, next_retry_at"}}

-- +goose Down
-- The published indexes stay with their tables.
SET SESSION lock_wait_timeout = 5;

{{.DropIndex "event_notifications" "event_notifications_claim"}}
