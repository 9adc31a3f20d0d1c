package postgres

import (
	"strings"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// fanOutSQL marks the events of a batch and inserts their deliveries.
//
// batch has one row per event, sorted by id, so that two statements about the same events
// lock them in the same order. {fresh} are the events that this statement is the
// first to fan out, with the columns of a delivery. The clock is read after fresh, that
// is, after any wait for a lock.
//
// What it did is as a rule what it was asked for: every event marked, every delivery inserted, $14 of them leased. Then it says
// that, and leaves out the lists, which would cost a tenth of the statement.
const fanOutSQL = `
WITH batch AS MATERIALIZED (
    SELECT b.n, b.id, {own_key} AS key, b.targets
    FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS b (id, key, targets, n)
), fresh AS {fresh}
` + insertSQL + `
SELECT s.inserted,
       s.marked,
       CASE WHEN NOT s.inserted THEN ARRAY(SELECT id FROM inserted) END,
       CASE WHEN NOT s.inserted THEN ARRAY(SELECT id FROM inserted WHERE lease_token IS NOT NULL) END,
       CASE WHEN NOT s.marked THEN ARRAY(SELECT DISTINCT n FROM fresh) END,
       CASE WHEN NOT s.marked THEN ARRAY(SELECT b.n FROM batch b
             WHERE NOT EXISTS (SELECT FROM fresh f WHERE f.n = b.n)
               AND NOT EXISTS (SELECT FROM {from} t WHERE {id} = b.key OFFSET 0)) END,
       {duplicates},
       CASE WHEN NOT s.marked THEN {unmarked} END
FROM (SELECT {all_marked} AS marked,
             (SELECT count(*) = coalesce(cardinality($4::uuid[]), 0) AND count(lease_token) = $14::bigint FROM inserted) AS inserted OFFSET 0) AS s`

// unmarkedSQL inserts the deliveries of events whose rows are there and could not be marked: a trigger or a
// rule suppresses the update, or a policy hides the rows from it. A row that is marked by now was
// fanned out by somebody else meanwhile. One that is still pending is fanned out without
// its mark; its deliveries are what says so.
const unmarkedSQL = `
WITH batch AS MATERIALIZED (
    SELECT b.n, b.id::uuid AS id, b.key::{key} AS key
    FROM unnest($1::bigint[], $2::text[], $3::text[]) AS b (n, id, key)
), fresh AS MATERIALIZED (
    SELECT {values}
    FROM batch AS b JOIN {from} AS t ON {id} = ANY (ARRAY[b.key])
    WHERE {pending} AND NOT EXISTS (SELECT FROM {deliveries} d WHERE d.event_id = b.id OFFSET 0)
)` + insertSQL + `
SELECT ARRAY(SELECT id FROM inserted),
       ARRAY(SELECT id FROM inserted WHERE lease_token IS NOT NULL),
       ARRAY(SELECT DISTINCT n FROM fresh),
       ARRAY(SELECT b.n FROM batch b WHERE NOT EXISTS (SELECT FROM {from} t WHERE {id} = b.key OFFSET 0))`

// insertSQL inserts the deliveries of the events in fresh. It follows a WITH, and takes parameters 4 to 13.
const insertSQL = `
, target AS MATERIALIZED (
    SELECT * FROM unnest($4::uuid[], $5::bigint[], $6::text[], $7::boolean[], $8::bigint[], $9::text[], $10::text[])
        AS g (id, n, handler, lease, window_us, blocked, detail)
), clock AS MATERIALIZED (
    SELECT n.now, n.now + $13::bigint * interval '1 microsecond' AS until
    FROM (SELECT {now} AS now FROM (SELECT count(*) FROM fresh) AS after_fresh) AS n
), inserted AS (
    INSERT INTO {deliveries} AS d (
        id, event_id, handler_name, namespace, action_id, action_name, action_params, started_date, completion_date,
        model_id, model_type, event_type, payload, payload_raw, event_date, traceparent, headers,
        state, attempts, next_retry_at, created_date, updated_date,
        claim_count, lease_token, lease_until, lease_owner, reason, last_error)
    SELECT g.id, f.id, g.handler, f.namespace, f.action_id, f.action_name, f.action_params, f.started_date, f.completion_date,
           f.model_id, f.model_type, f.event_type, f.payload, f.payload_raw, f.event_date, f.traceparent, f.headers,
           CASE WHEN g.blocked = '' THEN 'PENDING' ELSE 'BLOCKED' END,
           0,
           COALESCE(l.until, GREATEST(LEAST(f.event_date, c.now), '0001-01-01')),
           c.now,
           c.now,
           CASE WHEN l.until IS NULL THEN 0 ELSE 1 END,
           CASE WHEN l.until IS NOT NULL THEN $11::uuid END,
           l.until,
           CASE WHEN l.until IS NOT NULL THEN $12::text END,
           NULLIF(g.blocked, ''),
           NULLIF(g.detail, '')
    FROM {unique} AS f
    JOIN target g ON g.n = f.n
    CROSS JOIN clock c
    CROSS JOIN LATERAL (
        SELECT CASE WHEN g.lease AND g.blocked = ''
                     AND (g.window_us = 0 OR f.event_date >= c.now - g.window_us * interval '1 microsecond')
               THEN c.until END AS until
    ) l
    ON CONFLICT (event_id, handler_name) DO NOTHING
    RETURNING d.id, d.lease_token
)`

// imageSQL inserts the deliveries of events that the table did not show, from the log's image. An
// event that has deliveries was fanned out before, and its row deleted since.
//
// The log can be faster than the table: the server sends a commit once it is on disk, a moment before
// other sessions see it. That moment has passed as a rule when this statement begins, so it marks the rows
// that have come into sight (see late for the others), and the poller has nothing to find later. It marks before
// it inserts, as fanOutSQL does, so that the two never wait for each other.
const imageSQL = `
WITH batch AS MATERIALIZED (
    SELECT b.n, b.id::uuid AS id, b.key::{key} AS key, b.targets
    FROM unnest($1::bigint[], $2::text[], $27::text[], $28::bigint[]) AS b (n, id, key, targets)
), marked AS (
    {mark_late}
), fresh AS MATERIALIZED (
    SELECT i.n, i.id::uuid AS id, i.namespace, COALESCE(NULLIF(i.action_id, ''), i.id)::uuid AS action_id, i.action_name,
           COALESCE(i.action_params::jsonb, '{}') AS action_params,
           COALESCE(i.started_date::timestamp, i.event_date::timestamp, {now}) AS started_date,
           COALESCE(i.completion_date::timestamp, i.event_date::timestamp, {now}) AS completion_date,
           NULLIF(i.model_id, '') AS model_id, NULLIF(i.model_type, '') AS model_type, i.event_type,
           CASE WHEN $3::boolean THEN convert_from(i.payload, 'UTF8')::jsonb END AS payload,
           CASE WHEN NOT $3::boolean THEN i.payload END AS payload_raw,
           COALESCE(i.event_date::timestamp, {now}) AS event_date,
           NULLIF(i.traceparent, '') AS traceparent, i.headers::jsonb AS headers
    FROM unnest($1::bigint[], $2::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::text[], $19::text[],
                $20::text[], $21::text[], $22::text[], $23::bytea[], $24::text[], $25::text[], $26::text[])
        AS i (n, id, namespace, action_id, action_name, action_params, started_date, completion_date,
              model_id, model_type, event_type, payload, event_date, traceparent, headers)
    WHERE NOT EXISTS (SELECT FROM {deliveries} d WHERE d.event_id = i.id::uuid OFFSET 0)
      AND (SELECT count(*) FROM marked) >= 0
)` + insertSQL + `
SELECT ARRAY(SELECT id FROM inserted),
       ARRAY(SELECT id FROM inserted WHERE lease_token IS NOT NULL),
       ARRAY(SELECT n FROM fresh),
       ARRAY(SELECT n FROM marked)`

// quarantineSQL marks an event, if it is there to be marked, and inserts reduced deliveries
// that stand for those the database refused. Every value is a parameter, so that nothing of the row is read.
const quarantineSQL = `
WITH batch AS MATERIALIZED (
    SELECT 1 AS n, $1::text::uuid AS id, $2::text::{key} AS key, cardinality($3::text[]) AS targets
), marked AS (
    {mark}
    RETURNING b.n
)` + quarantineInsertSQL

const quarantineInsertSQL = `
INSERT INTO {deliveries} (
    id, event_id, handler_name, namespace, action_id, action_name, action_params, started_date, completion_date,
    model_id, model_type, event_type, event_date,
    state, attempts, next_retry_at, created_date, updated_date, claim_count, reason, last_error)
SELECT g.id::uuid, $1::text::uuid, left(g.handler, 255), left($5::text, 255), $6::text::uuid, left($7::text, 255), '{}',
       COALESCE($8::text::timestamp, e.date), COALESCE($9::text::timestamp, e.date),
       left(NULLIF($10::text, ''), 255), left(NULLIF($11::text, ''), 255), left($12::text, 255), e.date,
       'BLOCKED', 0, GREATEST(LEAST(e.date, c.now), '0001-01-01'), c.now, c.now, 0, $14::text, NULLIF($15::text, '')
FROM unnest($3::text[], $4::text[]) AS g (id, handler)
CROSS JOIN (SELECT {now} AS now) AS c
CROSS JOIN LATERAL (SELECT COALESCE($13::text::timestamp, c.now) AS date) AS e
ON CONFLICT (event_id, handler_name) DO NOTHING`

// render fills in the statements about the event table. One pass replaces all tokens, so that a
// name that looks like a token stays a name.
func (t *eventTable) render() {
	x := strings.NewReplacer(
		"{now}", t.now,
		"{deliveries}", t.deliveries,
		"{from}", t.from,
		"{id}", t.ref(t.Columns.ID),
		"{key}", t.columns[t.Columns.ID].typ,
		"{own_key}", t.ownKeySQL(),
		"{fresh}", t.freshSQL(),
		"{unique}", t.uniqueSQL(),
		"{duplicates}", t.duplicatesSQL(),
		"{all_marked}", t.allMarkedSQL(),
		"{mark}", t.markSQL(),
		"{unmarked}", t.listUnmarkedSQL(),
		"{values}", t.deliveryValues(),
		"{pending}", t.pendingByKey(),
	)
	t.fanOut = x.Replace(fanOutSQL)
	t.unmarked = x.Replace(unmarkedSQL)
	// Images are of distinct events, whatever the table's key allows.
	image := func(mark string) string {
		return x.Replace(strings.NewReplacer("{mark_late}", mark, "{unique}", "fresh").Replace(imageSQL))
	}
	t.imageOnly = image("SELECT n FROM batch") // all count as marked: there is nothing to do later
	t.image = t.imageOnly
	if t.Mark.Kind != schema.MarkNone {
		t.image = image("{mark} RETURNING b.n")
	}
	t.markLate = x.Replace(markLateSQL)
	t.quarantineUnmarked = x.Replace(quarantineUnmarkedSQL)
	t.quarantine = t.quarantineUnmarked
	if t.Mark.Kind != schema.MarkNone {
		t.quarantine = x.Replace(quarantineSQL)
	}
	t.present = x.Replace("SELECT EXISTS (SELECT FROM {from} AS t WHERE {id} = $1::text::{key})")
	t.undelivered, t.undeliveredKeys, t.undeliveredByKey = t.undeliveredSQL(), t.undeliveredKeysSQL(), t.undeliveredByKeySQL()
	t.unidentifiable = t.unidentifiableSQL()
}

// quarantineUnmarkedSQL is quarantineSQL without the mark.
const quarantineUnmarkedSQL = `
WITH batch AS MATERIALIZED (SELECT $2::text::{key} AS key)` + quarantineInsertSQL

// freshSQL finds, and marks where there is a mark, the events that are not fanned out yet.
func (t *eventTable) freshSQL() string {
	if t.Mark.Kind == schema.MarkNone {
		return `MATERIALIZED (
    SELECT ` + t.deliveryValues() + `
    FROM batch AS b JOIN ` + t.from + ` AS t ON ` + t.byKey() + `
    WHERE NOT EXISTS (SELECT FROM ` + t.deliveries + ` d WHERE d.event_id = b.id OFFSET 0)
)`
	}
	return `(
    ` + t.markSQL() + `
    RETURNING ` + t.deliveryValues() + `
)`
}

// markSQL is the guarded update: it takes the rows of batch that are not marked.
func (t *eventTable) markSQL() string {
	var set, guard string
	column := quoteIdent(t.Mark.Column)
	switch t.Mark.Kind {
	case schema.MarkNone:
		return ""
	case schema.MarkBoolean:
		set, guard = column+" = true", t.pendingByKey()
	case schema.MarkStatus:
		typ := "::" + t.columns[t.Mark.Column].typ
		set = column + " = CASE WHEN b.targets > 0 OR EXISTS (SELECT FROM " + t.deliveries + " d WHERE d.event_id = b.id) THEN " +
			quoteText(t.Mark.Done) + typ + " ELSE " + quoteText(t.Mark.None) + typ + " END"
		if t.Mark.At != "" {
			now := t.now
			if t.columns[t.Mark.At].base == oidTimestamptz {
				now = parens(now + " AT TIME ZONE 'UTC'")
			}
			set += ", " + quoteIdent(t.Mark.At) + " = " + now
		}
		guard = t.pendingByKey()
	}
	return "UPDATE " + t.from + " AS t SET " + set + " FROM batch AS b WHERE " + t.byKey() + " AND " + guard
}

// deliveryValues are the columns of fresh: what a delivery copies from its event (A47).
func (t *eventTable) deliveryValues() string {
	c := &t.Columns
	date := orElse(c.Date, t.timestamp, t.now)
	payload, raw := "NULL::jsonb", t.payloadBytes()
	if t.inColumn() {
		payload, raw = t.ref(c.Payload), "NULL::bytea"
	}
	nullable := func(column, typ string, expr func(string) string) string {
		if column == "" {
			return "NULL" + typ
		}
		return expr(column)
	}
	json := func(column string) string { return t.ref(column) + "::jsonb" }
	values := []string{
		"b.n",
		"b.id",
		orElse(c.Namespace, t.text, "''") + " AS namespace",
		orElse(c.ActionID, t.uuid, "b.id") + " AS action_id",
		orElse(c.ActionName, t.text, "''") + " AS action_name",
		orElse(c.ActionParams, json, "'{}'::jsonb") + " AS action_params",
		orElse(c.StartedDate, t.timestamp, date) + " AS started_date",
		orElse(c.CompletionDate, t.timestamp, date) + " AS completion_date",
		nullable(c.ModelID, "::text", t.text) + " AS model_id",
		nullable(c.ModelType, "::text", t.text) + " AS model_type",
		t.text(c.Type) + " AS event_type",
		payload + " AS payload",
		raw + " AS payload_raw",
		date + " AS event_date",
		nullable(c.Traceparent, "::text", t.text) + " AS traceparent",
		nullable(c.Headers, "::jsonb", json) + " AS headers",
	}
	return strings.Join(values, ",\n           ")
}

// byKey joins the event table with batch, in the form that change.go asks for.
func (t *eventTable) byKey() string { return t.ref(t.Columns.ID) + " = ANY (ARRAY[b.key])" }

// uniqueSQL picks one row per event where the key allows several.
func (t *eventTable) uniqueSQL() string {
	if t.uniqueID {
		return "fresh"
	}
	return "(SELECT DISTINCT ON (n) * FROM fresh ORDER BY n)"
}

// ownKeySQL is the table's key of an event of the batch: its id, where the column is a UUID.
func (t *eventTable) ownKeySQL() string {
	if typ := t.columns[t.Columns.ID].typ; typ != "uuid" {
		return "b.key::" + typ
	}
	return "b.id"
}

// allMarkedSQL says that every event of the batch is fresh. Where several rows may have one key, nobody can tell by counting.
func (t *eventTable) allMarkedSQL() string {
	if !t.uniqueID {
		return "false"
	}
	return "(SELECT count(*) FROM fresh) = cardinality($1::uuid[])"
}

// listUnmarkedSQL lists the events of the batch whose rows were pending and did not become fresh.
func (t *eventTable) listUnmarkedSQL() string {
	if t.Mark.Kind == schema.MarkNone {
		return "ARRAY[]::bigint[]"
	}
	return `ARRAY(SELECT b.n FROM batch b
             WHERE NOT EXISTS (SELECT FROM fresh f WHERE f.n = b.n)
               AND EXISTS (SELECT FROM ` + t.from + ` AS t WHERE ` + t.ref(t.Columns.ID) + ` = b.key AND ` + t.pendingByKey() + ` OFFSET 0))`
}

// duplicatesSQL lists the events of the batch that several rows carry.
func (t *eventTable) duplicatesSQL() string {
	if t.uniqueID {
		return "ARRAY[]::bigint[]"
	}
	return `ARRAY(SELECT b.n FROM batch b JOIN ` + t.from + ` AS t ON ` + t.byKey() + `
             GROUP BY b.n HAVING count(*) > 1)`
}
