-- +goose NO TRANSACTION
-- +goose Up
-- Nullable columns without a default, as in 0002.
SET SESSION lock_wait_timeout = 5;

-- When the last look began whose events have all been dealt with. A table without a mark is looked
-- through from there on, and not from now.
{{.AddColumns "sources" "looked_date DATETIME(6)"}}

-- Claims on end that had no outcome: the process died each time.
{{.AddColumns "event_notifications" "lost_claims INT"}}

-- +goose Down
SET SESSION lock_wait_timeout = 5;

{{.DropColumns "event_notifications" "lost_claims"}}

{{.DropColumns "sources" "looked_date"}}
