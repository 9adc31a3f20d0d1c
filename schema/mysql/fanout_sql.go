package mysql

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// deliveryColumns are the columns that a fan-out fills. Those of the first line are the target's, those of the
// second the event's, those of the last say when and for whom.
const deliveryColumns = `id, event_id, handler_name,
    namespace, action_id, action_name, action_params, started_date, completion_date, model_id, model_type, event_type, payload, payload_raw,
    event_date, traceparent, headers,
    state, attempts, next_retry_at, created_date, updated_date, claim_count, lease_token, lease_until, lease_owner, reason, last_error`

// targetSQL is one row of the list g of targets. Of its values only the number of bytes differs from row to row.
const targetSQL = "? AS n, ? AS id, ? AS event_id, ? AS k, ? AS handler, ? AS lease, ? AS window_us, ? AS blocked, ? AS detail, ? AS action_id"

// targetArgs are its values. The id of the action may have to be derived, so it comes from here; action is that of the row.
func (b *fanBatch) targetArgs(g goal, lease bool, action string) []any {
	t := b.target(g)
	return []any{
		g.event, t.ID.String(), b.event(g.event).ID, b.key(g.event), t.Handler, flag(lease), micros(t.Window), t.Blocked, clean(t.Detail),
		cmp.Or(action, b.event(g.event).ID),
	}
}

// eventExprs are what a delivery copies from its event, as expressions.
type eventExprs struct {
	namespace, actionName, actionParams, started, completed, modelID, modelType, typ, payload, raw, date, trace, headers string
}

// insertSQL is the head of a statement that inserts the deliveries of the list g. The event's columns are e, the time is c.now;
// leased says which of them are created leased.
func (s *Store) insertSQL(b *statement, o *ourTables, lease delivery.Lease, e eventExprs, leased string) *statement {
	b.add("INSERT INTO " + s.names.deliveries + " (" + deliveryColumns + ")\nSELECT " + strings.Join([]string{
		o.id.from("g.id"), o.eventID.from("g.event_id"), "g.handler", e.namespace, o.actionID.from("g.action_id"), e.actionName,
		e.actionParams, e.started, e.completed, e.modelID, e.modelType, e.typ, e.payload, e.raw, e.date, e.trace, e.headers,
	}, ", "))
	b.add(",\n    CASE WHEN g.blocked = '' THEN 'PENDING' ELSE 'BLOCKED' END, 0")
	b.add(", CASE WHEN "+leased+" THEN c.now + INTERVAL ? MICROSECOND ELSE LEAST("+e.date+", c.now) END, c.now, c.now", micros(lease.For))
	b.add(", CASE WHEN "+leased+" THEN 1 ELSE 0 END, CASE WHEN "+leased+" THEN ? END", o.token.uuid(lease.Token))
	b.add(", CASE WHEN "+leased+" THEN c.now + INTERVAL ? MICROSECOND END, CASE WHEN "+leased+" THEN ? END", micros(lease.For), clean(lease.Owner))
	return b.add(", NULLIF(g.blocked, ''), NULLIF(g.detail, '')\nFROM (SELECT " + s.now + " AS now) AS c\nSTRAIGHT_JOIN (")
}

// onDuplicate makes a delivery that is there stay as it is. An error of any other kind stays an error.
func (s *Store) onDuplicate() string {
	// Without a condition, ON would be taken for that of the join before it.
	return "\nWHERE TRUE ON DUPLICATE KEY UPDATE attempts = " + s.names.deliveries + ".attempts"
}

// union adds rows of values as SELECTs; the first one names them.
func union(b *statement, named string, rows [][]any) *statement {
	plain := "?" + strings.Repeat(", ?", strings.Count(named, "?")-1)
	for i, row := range rows {
		if i == 0 {
			b.add("SELECT "+named, row...)
		} else {
			b.add(" UNION ALL SELECT "+plain, row...)
		}
	}
	return b
}

// insert inserts the deliveries from the events' rows, whose payloads do not leave the database. It says whether every
// one of them is new.
func (f *fanning) insert(ctx context.Context, q querier, t *eventTable, o *ourTables, srv *server, goals []goal, found map[int]found) (all bool, err error) {
	e := t.exprs()
	values := func(g goal) []any {
		row := found[g.event]
		return f.b.targetArgs(g, row.leased(f.b.target(g)), row.ActionID)
	}
	all = true
	for part := range chunks(goals, srv.packet, func(g goal) int { return sizeOf(values(g)) }) {
		rows := make([][]any, len(part))
		for i, g := range part {
			rows[i] = values(g)
		}
		b := f.insertSQL(&statement{}, o, f.b.Lease, e, "g.lease = 1")
		union(b, targetSQL, rows).add(") AS g\nSTRAIGHT_JOIN " + t.from + " AS t" + t.force +
			" ON " + t.ref(t.Columns.ID) + " = " + t.key().from("g.k"))
		if t.alike() {
			b.add(" AND " + bytesOf(t.text(t.Columns.ID)) + " = " + bytesOf("g.k"))
		}
		added, err := f.insertNew(ctx, q, b)
		if err != nil {
			return false, err
		}
		all = all && added == int64(len(part))
	}
	return all, nil
}

// insertNew inserts deliveries that are new as a rule, and counts them; 0 stands for any number when one was there before. That
// takes a second statement, because the count of the first kind only is to be trusted: with ON DUPLICATE KEY, a row
// that was there may count as none, one or two, by the settings of the connection and the triggers of the table.
func (s *Store) insertNew(ctx context.Context, q querier, b *statement) (added int64, err error) {
	added, err = b.affecting(ctx, q)
	if !is(err, numDuplicate) {
		return added, err
	}
	// The server has undone the statement, and no more than that.
	return 0, b.add(s.onDuplicate()).exec(ctx, q)
}

// exprs are the columns of a delivery as the row t of the event table has them (A47).
func (t *eventTable) exprs() eventExprs {
	c := &t.Columns
	nullable := func(name string) string {
		if name == "" {
			return "NULL"
		}
		return t.text(name)
	}
	date := orElse(c.Date, t.timestamp, "c.now")
	payload, raw := payloadValues(t.columns[c.Payload], t.ref(c.Payload), t.mariaDB)
	return eventExprs{
		namespace: orElse(c.Namespace, t.text, "''"), actionName: orElse(c.ActionName, t.text, "''"), actionParams: orElse(c.ActionParams, t.text, "'{}'"),
		started: orElse(c.StartedDate, t.timestamp, date), completed: orElse(c.CompletionDate, t.timestamp, date),
		modelID: nullable(c.ModelID), modelType: nullable(c.ModelType), typ: t.text(c.Type), payload: payload, raw: raw,
		date: date, trace: nullable(c.Traceparent), headers: nullable(c.Headers),
	}
}

// imageSQL is one row of the list i of events from the log. Its number is that of its targets.
const imageSQL = `? AS n, ? AS namespace, ? AS action_name, ? AS action_params, ? AS started, ? AS completed,
    ? AS model_id, ? AS model_type, ? AS typ, ? AS payload, ? AS date, ? AS trace, ? AS headers`

func (b *fanBatch) imageArgs(n int, payload column) []any {
	e := b.event(n)
	body := rawOrNil(e.Payload)
	if payload.kind == kindBytes && e.Payload != nil {
		body = []byte(e.Payload)
	}
	return []any{
		n, e.Namespace, e.ActionName, rawOrNil(e.ActionParams), timeText(e.StartedDate), timeText(e.CompletionDate),
		orNull(e.ModelID), orNull(e.ModelType), e.Type, body, timeText(e.Date), orNull(e.Traceparent), rawOrNil(e.Headers),
	}
}

// imageExprs are the columns of a delivery as the row i of the log's images has them.
func imageExprs(c column, mariaDB bool) eventExprs {
	at := func(name string) string { return "CAST(" + name + " AS DATETIME(6))" }
	date := "COALESCE(" + at("i.date") + ", c.now)"
	payload, raw := payloadValues(c, "i.payload", mariaDB)
	return eventExprs{
		namespace: "i.namespace", actionName: "i.action_name",
		actionParams: "COALESCE(i.action_params, '{}')",
		started:      "COALESCE(" + at("i.started") + ", " + date + ")", completed: "COALESCE(" + at("i.completed") + ", " + date + ")",
		modelID: "i.model_id", modelType: "i.model_type", typ: "i.typ", payload: payload, raw: raw,
		date: date, trace: "i.trace", headers: "i.headers",
	}
}

// young says in SQL what found.leased says, for events that are read from nowhere else.
func young(date string) string {
	window := "CAST(g.window_us AS SIGNED)"
	return "(g.lease = 1 AND g.blocked = '' AND (" + window + " = 0 OR " + date + " >= c.now - INTERVAL " + window + " MICROSECOND))"
}

// images makes the deliveries of events whose rows are gone, from the log's image. One that has
// deliveries was fanned out before, and its row deleted since. What the workers get is read back: the database
// may print a document in another form than the log.
func (f *fanning) images(ctx context.Context, events []int) error {
	var done *passed
	err := f.withTable(ctx, func(t *eventTable, o *ourTables) error {
		srv, err := f.serverOf(ctx)
		if err != nil {
			return err
		}
		return f.change(ctx, func(q querier) error {
			old, err := f.fannedOut(ctx, q, o, events)
			if err != nil {
				return err
			}
			fresh := without(events, old)
			done = &passed{repeated: old, absent: fresh}
			goals, err := f.insertImages(ctx, q, t, o, srv, fresh)
			if err != nil {
				return err
			}
			if err := f.inserted(ctx, q, o, done, goals); err != nil {
				return err
			}
			done.stored, err = f.storedDeliveries(ctx, q, o, done.created)
			return err
		})
	})
	if err == nil {
		f.merge(done)
	}
	return err
}

func (f *fanning) insertImages(ctx context.Context, q querier, t *eventTable, o *ourTables, srv *server, events []int) ([]goal, error) {
	payload := t.columns[t.Columns.Payload]
	e := imageExprs(payload, t.mariaDB)
	var all []goal
	for part := range chunks(events, srv.packet, func(n int) int {
		return sizeOf(f.b.imageArgs(n, payload)) + len(f.b.fan(n).Targets)*sizeOf(f.b.targetArgs(goal{n, 0}, true, f.b.event(n).ActionID))
	}) {
		var targets, images [][]any
		goals := f.b.goals(part)
		all = append(all, goals...)
		for _, g := range goals {
			targets = append(targets, f.b.targetArgs(g, f.b.target(g).Lease, f.b.event(g.event).ActionID))
		}
		for _, n := range part {
			values := f.b.imageArgs(n, payload)
			if slices.ContainsFunc(values, func(v any) bool { text, ok := v.(string); return ok && !utf8.ValidString(text) }) {
				return nil, errInvalidText
			}
			images = append(images, values)
		}
		b := f.insertSQL(&statement{}, o, f.b.Lease, e, young(e.date))
		union(b, targetSQL, targets).add(") AS g\nSTRAIGHT_JOIN (")
		union(b, imageSQL, images).add(") AS i ON i.n = g.n" + f.onDuplicate())
		if err := b.exec(ctx, q); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// chunks cuts a list into parts of at most rowsPerStatement items whose sizes together stay below
// the bound. An item that is larger is alone.
func chunks[T any](items []T, most int, size func(T) int) func(yield func([]T) bool) {
	return func(yield func([]T) bool) {
		for begin := 0; begin < len(items); {
			end, bytes := begin, 0
			for end < len(items) && end-begin < rowsPerStatement {
				bytes += size(items[end])
				if end > begin && bytes > most {
					break
				}
				end++
			}
			if !yield(slices.Clip(items[begin:end])) {
				return
			}
			begin = end
		}
	}
}

// sizeOf is about how many bytes the values take in a statement.
func sizeOf(values []any) int {
	size := 0
	for _, v := range values {
		switch v := v.(type) {
		case string:
			size += len(v)
		case []byte:
			size += len(v)
		}
		size += 16
	}
	return size
}
