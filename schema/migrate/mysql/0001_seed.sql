-- +goose NO TRANSACTION
-- +goose Up
-- The published tables. On a database that has them already, with data, this changes nothing.
SET SESSION lock_wait_timeout = 5;
{{- if .Events}}

CREATE TABLE IF NOT EXISTS {{.Schema}}.events (
    id              {{.UUID}} NOT NULL,
    namespace       VARCHAR(255) NOT NULL,
    action_id       {{.UUID}} NOT NULL,
    action_name     VARCHAR(255) NOT NULL,
    action_params   JSON         NOT NULL,
    started_date    DATETIME(6)  NOT NULL,
    completion_date DATETIME(6)  NOT NULL,
    model_id        VARCHAR(255),
    model_type      VARCHAR(255),
    event_type      VARCHAR(255),
    payload         JSON,
    event_date      DATETIME(6)  NOT NULL,
    delivered       BOOLEAN      NOT NULL,
    traceparent     TEXT,
    headers         JSON,
    PRIMARY KEY (id)
) {{.TableOptions}};
{{- end}}

CREATE TABLE IF NOT EXISTS {{.Schema}}.event_notifications (
    id              {{.UUID}} NOT NULL,
    event_id        {{.UUID}} NOT NULL,
    handler_name    VARCHAR(255) NOT NULL,
    namespace       VARCHAR(255) NOT NULL,
    action_id       {{.UUID}} NOT NULL,
    action_name     VARCHAR(255) NOT NULL,
    action_params   JSON         NOT NULL,
    started_date    DATETIME(6)  NOT NULL,
    completion_date DATETIME(6)  NOT NULL,
    model_id        VARCHAR(255),
    model_type      VARCHAR(255),
    event_type      VARCHAR(255) NOT NULL,
    payload         JSON,
    event_date      DATETIME(6)  NOT NULL,
    state           VARCHAR(24)  NOT NULL,
    attempts        INT          NOT NULL DEFAULT 0,
    next_retry_at   DATETIME(6)  NOT NULL,
    created_date    DATETIME(6)  NOT NULL,
    updated_date    DATETIME(6)  NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY event_id (event_id, handler_name)
) {{.TableOptions}};

-- +goose Down
-- Both tables hold the user's events and deliveries: they stay.
