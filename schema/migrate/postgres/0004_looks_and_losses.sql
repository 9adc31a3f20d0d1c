-- +goose Up
-- Nullable columns without a default, as in 0002.
SET LOCAL lock_timeout = '5s';

-- When the last look began whose events have all been dealt with. A table without a mark is looked
-- through from there on, and not from now.
ALTER TABLE {{.Schema}}.sources
    ADD COLUMN IF NOT EXISTS looked_date TIMESTAMP;

-- Claims on end that had no outcome: the process died each time.
ALTER TABLE {{.Schema}}.event_notifications
    ADD COLUMN IF NOT EXISTS lost_claims INT;

-- +goose Down
SET LOCAL lock_timeout = '5s';

ALTER TABLE {{.Schema}}.event_notifications
    DROP COLUMN IF EXISTS lost_claims;

ALTER TABLE {{.Schema}}.sources
    DROP COLUMN IF EXISTS looked_date;
