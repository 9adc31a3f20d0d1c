-- +goose Up
-- Nullable columns without a default: the table is not rewritten, and its lock is held
-- for an instant or, behind a longer transaction, not taken at all.
SET LOCAL lock_timeout = '5s';

ALTER TABLE {{.Schema}}.event_notifications
    ADD COLUMN IF NOT EXISTS lease_token   UUID,
    ADD COLUMN IF NOT EXISTS lease_until   TIMESTAMP,
    ADD COLUMN IF NOT EXISTS lease_owner   TEXT,
    ADD COLUMN IF NOT EXISTS claim_count   INT,
    ADD COLUMN IF NOT EXISTS reason        TEXT,
    ADD COLUMN IF NOT EXISTS last_error    TEXT,
    ADD COLUMN IF NOT EXISTS finished_date TIMESTAMP,
    ADD COLUMN IF NOT EXISTS retried_date  TIMESTAMP,
    ADD COLUMN IF NOT EXISTS partition_key TEXT,
    ADD COLUMN IF NOT EXISTS payload_raw   BYTEA,
    ADD COLUMN IF NOT EXISTS traceparent   TEXT,
    ADD COLUMN IF NOT EXISTS headers       JSONB;

-- Attempts that did not succeed.
CREATE TABLE {{.Schema}}.event_notification_attempts (
    delivery_id  UUID        NOT NULL,
    id           BIGINT      GENERATED ALWAYS AS IDENTITY,
    attempt      INT         NOT NULL,
    outcome      VARCHAR(24) NOT NULL,
    reason       TEXT,
    error        TEXT,
    message      TEXT,
    started_date TIMESTAMP   NOT NULL,
    duration_us  BIGINT      NOT NULL,
    PRIMARY KEY (delivery_id, id)
);

-- Who serves which handler name, and which handlers are paused.
CREATE TABLE {{.Schema}}.handlers (
    name         VARCHAR(255) PRIMARY KEY,
    aliases      TEXT[]       NOT NULL,
    types        TEXT[]       NOT NULL,
    generation   BIGINT       NOT NULL,
    last_owner   TEXT         NOT NULL,
    last_seen    TIMESTAMP    NOT NULL,
    paused_by    TEXT,
    pause_reason TEXT,
    paused_date  TIMESTAMP,
    created_date TIMESTAMP    NOT NULL
);

-- What each source is doing, as last reported by the process that reads it.
CREATE TABLE {{.Schema}}.sources (
    name         TEXT      PRIMARY KEY,
    owner        TEXT      NOT NULL,
    mode         TEXT      NOT NULL,
    detail       TEXT      NOT NULL,
    position     TEXT      NOT NULL,
    updated_date TIMESTAMP NOT NULL
);

-- Stretches of log that were not read.
CREATE TABLE {{.Schema}}.gaps (
    id            BIGINT    GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source        TEXT      NOT NULL,
    reason        TEXT      NOT NULL,
    detail        TEXT      NOT NULL,
    from_position TEXT      NOT NULL,
    to_position   TEXT      NOT NULL,
    detected_date TIMESTAMP NOT NULL,
    closed_date   TIMESTAMP
);

CREATE UNIQUE INDEX gaps_open
    ON {{.Schema}}.gaps (source, reason, from_position, to_position)
    WHERE closed_date IS NULL;

-- What operators did.
CREATE TABLE {{.Schema}}.audit_log (
    id            BIGINT    GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    happened_date TIMESTAMP NOT NULL,
    actor         TEXT      NOT NULL,
    action        TEXT      NOT NULL,
    target        TEXT      NOT NULL,
    affected      BIGINT    NOT NULL,
    reason        TEXT,
    detail        JSONB
);

-- +goose Down
-- Drops what 0002 created. Deliveries stay, so it refuses while some have the only
-- copy of their payload in a column that would go.
SET LOCAL lock_timeout = '5s';

-- +goose StatementBegin
DO $do$
BEGIN
    IF EXISTS (SELECT FROM {{.Schema}}.event_notifications WHERE payload_raw IS NOT NULL) THEN
        RAISE EXCEPTION 'event_notifications has deliveries whose payload is kept in payload_raw, which this step would drop'
            USING HINT = 'Delete those deliveries first, or keep the column.', ERRCODE = 'object_in_use';
    END IF;
END
$do$;
-- +goose StatementEnd

DROP TABLE {{.Schema}}.audit_log;
DROP TABLE {{.Schema}}.gaps;
DROP TABLE {{.Schema}}.sources;
DROP TABLE {{.Schema}}.handlers;
DROP TABLE {{.Schema}}.event_notification_attempts;

ALTER TABLE {{.Schema}}.event_notifications
    DROP COLUMN lease_token,
    DROP COLUMN lease_until,
    DROP COLUMN lease_owner,
    DROP COLUMN claim_count,
    DROP COLUMN reason,
    DROP COLUMN last_error,
    DROP COLUMN finished_date,
    DROP COLUMN retried_date,
    DROP COLUMN partition_key,
    DROP COLUMN payload_raw,
    DROP COLUMN traceparent,
    DROP COLUMN headers;
