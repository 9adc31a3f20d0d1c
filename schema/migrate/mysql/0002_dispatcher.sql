-- +goose NO TRANSACTION
-- +goose Up
-- Nullable columns without a default at the end of the table: no row is rewritten, and the
-- lock is held for an instant or, behind a longer transaction, not taken at all. These
-- servers commit each statement, so each may run again after a crash between them.
SET SESSION lock_wait_timeout = 5;

{{.AddColumns "event_notifications"
    (print "lease_token " .UUID)
    "lease_until DATETIME(6)"
    "lease_owner TEXT"
    "claim_count INT"
    "reason TEXT"
    "last_error TEXT"
    "finished_date DATETIME(6)"
    "retried_date DATETIME(6)"
    "partition_key TEXT"
    "payload_raw LONGBLOB"
    "traceparent TEXT"
    (print "headers " .AddedJSON)}}

-- Attempts that did not succeed.
CREATE TABLE IF NOT EXISTS {{.Schema}}.event_notification_attempts (
    delivery_id  {{.UUID}} NOT NULL,
    id           BIGINT      NOT NULL AUTO_INCREMENT,
    attempt      INT         NOT NULL,
    outcome      VARCHAR(24) NOT NULL,
    reason       TEXT,
    error        TEXT,
    message      TEXT,
    started_date DATETIME(6) NOT NULL,
    duration_us  BIGINT      NOT NULL,
    PRIMARY KEY (delivery_id, id),
    KEY event_notification_attempts_id (id)
) {{.TableOptions}};

-- Who serves which handler name, and which handlers are paused. Aliases and types are arrays of text.
CREATE TABLE IF NOT EXISTS {{.Schema}}.handlers (
    name         VARCHAR(255) NOT NULL,
    aliases      JSON         NOT NULL,
    types        JSON         NOT NULL,
    generation   BIGINT       NOT NULL,
    last_owner   VARCHAR(255) NOT NULL,
    last_seen    DATETIME(6)  NOT NULL,
    paused_by    TEXT,
    pause_reason TEXT,
    paused_date  DATETIME(6),
    created_date DATETIME(6)  NOT NULL,
    PRIMARY KEY (name)
) {{.TableOptions}};

-- What each source is doing, and the place in the log up to which everything has its
-- deliveries. The position belongs to the reader of the current epoch; identity says of
-- which server it is.
CREATE TABLE IF NOT EXISTS {{.Schema}}.sources (
    name         VARCHAR(255)    NOT NULL,
    owner        VARCHAR(255)    NOT NULL,
    mode         VARCHAR(64)     NOT NULL,
    detail       TEXT            NOT NULL,
    position     LONGTEXT        NOT NULL,
    updated_date DATETIME(6)     NOT NULL,
    epoch        BIGINT UNSIGNED NOT NULL DEFAULT 0,
    identity     TEXT,
    PRIMARY KEY (name)
) {{.TableOptions}};

-- Stretches of log that were not read. open_key keeps one open gap from being recorded twice;
-- it is null, and no key, once the gap is closed.
CREATE TABLE IF NOT EXISTS {{.Schema}}.gaps (
    id            BIGINT       NOT NULL AUTO_INCREMENT,
    source        VARCHAR(255) NOT NULL,
    reason        VARCHAR(255) NOT NULL,
    detail        TEXT         NOT NULL,
    from_position LONGTEXT     NOT NULL,
    to_position   LONGTEXT     NOT NULL,
    detected_date DATETIME(6)  NOT NULL,
    closed_date   DATETIME(6),
    open_key      CHAR(64) CHARACTER SET ascii COLLATE ascii_bin GENERATED ALWAYS AS (
        CASE WHEN closed_date IS NULL
             THEN SHA2(CONCAT(LENGTH(source), ':', source, LENGTH(reason), ':', reason,
                              LENGTH(from_position), ':', from_position, to_position), 256)
        END) STORED,
    PRIMARY KEY (id),
    UNIQUE KEY gaps_open (open_key)
) {{.TableOptions}};

-- What operators did.
CREATE TABLE IF NOT EXISTS {{.Schema}}.audit_log (
    id            BIGINT       NOT NULL AUTO_INCREMENT,
    happened_date DATETIME(6)  NOT NULL,
    actor         VARCHAR(255) NOT NULL,
    action        VARCHAR(255) NOT NULL,
    target        TEXT         NOT NULL,
    affected      BIGINT       NOT NULL,
    reason        TEXT,
    detail        JSON,
    PRIMARY KEY (id)
) {{.TableOptions}};

-- +goose Down
-- Drops what 0002 created. Deliveries stay, so Down refuses first while some have the only
-- copy of their payload in a column that would go.
SET SESSION lock_wait_timeout = 5;

DROP TABLE IF EXISTS {{.Schema}}.audit_log;
DROP TABLE IF EXISTS {{.Schema}}.gaps;
DROP TABLE IF EXISTS {{.Schema}}.sources;
DROP TABLE IF EXISTS {{.Schema}}.handlers;
DROP TABLE IF EXISTS {{.Schema}}.event_notification_attempts;

{{.DropColumns "event_notifications" "lease_token" "lease_until" "lease_owner" "claim_count" "reason" "last_error"
    "finished_date" "retried_date" "partition_key" "payload_raw" "traceparent" "headers"}}
