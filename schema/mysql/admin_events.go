package mysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// pageKey is where a page of events ends. The date of a row without one is empty.
type pageKey struct {
	Date string `json:"d,omitempty"`
	Key  string `json:"k"`
}

// ListEvents returns rows of the event table. On a table without an index on its date, every page
// reads the whole table, within the time limit.
func (a *Admin) ListEvents(ctx context.Context, f admin.EventFilter, p admin.Page) (admin.Events, error) {
	var list admin.Events
	err := a.withTable(ctx, func(t *eventTable, o *ourTables) error {
		return a.ask(ctx, func(q querier) (err error) {
			list, err = a.eventsPage(ctx, q, t, o, f, p)
			return err
		})
	})
	if err != nil {
		return admin.Events{}, fmt.Errorf("list events: %w", err)
	}
	return list, nil
}

// listed is an event of a page, and its place.
type listed struct {
	admin.EventSummary
	key pageKey
}

// eventsStep is how many rows are read at a time where the query cannot tell the pending ones.
const eventsStep = 1000

func (a *Admin) eventsPage(ctx context.Context, q querier, t *eventTable, o *ourTables, f admin.EventFilter, p admin.Page) (list admin.Events, err error) {
	// Which rows are pending can then only be told by their deliveries, after they are read.
	sift := f.Pending && t.sifted()
	step, size := p.Size()+1, p.Size()
	if sift {
		step = eventsStep
	}
	var all []listed
	next := ""
	for read := 0; ; {
		rows, err := a.readEvents(ctx, q, t, o, f, p.After, step)
		if err != nil {
			return list, err
		}
		for _, e := range rows {
			if !sift || e.Pending {
				all = append(all, e)
			}
		}
		if next = ""; len(rows) == step {
			if next, err = rows[step-1].key.text(); err != nil {
				return list, err
			}
		}
		if read += len(rows); !sift || next == "" || len(all) > size || read >= a.cfg.CountLimit {
			break
		}
		p.After = next
	}
	if len(all) > size {
		all = all[:size]
		if next, err = all[size-1].key.text(); err != nil {
			return list, err
		}
	}
	for _, e := range all {
		list.Events = append(list.Events, e.EventSummary)
	}
	list.Next = next
	return list, nil
}

func (k pageKey) text() (string, error) {
	text, err := json.Marshal(k)
	return string(text), err
}

// readEvents reads rows, newest first, with what became of them.
func (a *Admin) readEvents(ctx context.Context, q querier, t *eventTable, o *ourTables, f admin.EventFilter, after string, limit int) ([]listed, error) {
	order := t.ref(t.Columns.ID) + " DESC"
	if t.Columns.Date != "" {
		order = t.ref(t.Columns.Date) + " DESC, " + order
	}
	b := (&statement{}).add("SELECT " + t.summaryColumns() + "\nFROM (SELECT * FROM " + t.from + " AS t WHERE ")
	if err := t.eventsWhere(f, after, b); err != nil {
		return nil, err
	}
	rows, err := query(ctx, q, b.add(" ORDER BY "+order+" LIMIT ?) AS t ORDER BY "+order, limit), func(rows *sql.Rows) (e listed, err error) {
		err = rows.Scan(textTarget{&e.key.Key}, textTarget{&e.key.Date}, textTarget{&e.Type}, dateTarget{&e.Date}, textTarget{&e.Namespace},
			textTarget{&e.ModelType}, textTarget{&e.ModelID}, &e.Pending)
		var derived bool
		if e.ID, derived = schema.EventID(t.QualifiedName(), e.key.Key); derived {
			e.Key = e.key.Key
		}
		return e, err
	})
	if err != nil {
		return nil, err
	}
	counts, err := a.states(ctx, q, o, idsOf(rows))
	for i := range rows {
		e := &rows[i]
		if e.Deliveries = counts[e.ID]; e.Deliveries == nil {
			e.Deliveries = map[delivery.State]int{}
		}
		if t.Mark.Kind == schema.MarkNone {
			e.Pending = len(e.Deliveries) == 0
		}
	}
	return rows, err
}

func idsOf(rows []listed) []string {
	ids := make([]string, len(rows))
	for i, e := range rows {
		ids[i] = e.ID
	}
	return ids
}

// sifted says that eventTable.pending is true of more rows than the pending ones: those whose event's
// id cannot be told in SQL.
func (t *eventTable) sifted() bool { return t.Mark.Kind == schema.MarkNone && !t.direct() }

// states counts the deliveries of events by state.
func (a *Admin) states(ctx context.Context, q querier, o *ourTables, ids []string) (map[string]map[delivery.State]int, error) {
	counts := map[string]map[delivery.State]int{}
	for part := range slices.Chunk(ids, eventsStep) {
		b := (&statement{}).add("SELECT " + o.eventID.text("d.event_id") + ", d.state, COUNT(*) FROM " + a.names.deliveries + " AS d WHERE d.event_id IN ").
			list(o.eventID.ids(part)).add(" GROUP BY d.event_id, d.state")
		if _, err := query(ctx, q, b, func(rows *sql.Rows) (struct{}, error) {
			var id string
			var state delivery.State
			var n int
			err := rows.Scan(textTarget{&id}, &state, &n)
			if counts[id] == nil {
				counts[id] = map[delivery.State]int{}
			}
			counts[id][state] = n
			return struct{}{}, err
		}); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// waiting is the condition for an event that no path has fanned out, where the poller looks.
func (t *eventTable) waiting(now string) string {
	condition := t.pending() + " AND " + t.typed()
	if t.Mark.Kind != schema.MarkNone || t.LookBack <= 0 {
		return condition
	}
	date := t.ref(t.Columns.Date)
	return condition + fmt.Sprintf(" AND (%[1]s IS NULL OR %[1]s >= %[2]s - INTERVAL %[3]d MICROSECOND)", date, now, micros(t.LookBack))
}

func (t *eventTable) eventsWhere(f admin.EventFilter, page string, b *statement) error {
	b.add(t.typed())
	typ := t.ref(t.Columns.Type)
	if t.columns[t.Columns.Type].kind != kindText {
		typ = parens(t.text(t.Columns.Type))
	}
	if prefix, ok := strings.CutSuffix(f.Type, "*"); ok {
		b.add(" AND ").begins(typ, prefix)
	} else if f.Type != "" {
		b.add(" AND ").exactly(typ, f.Type)
	}
	if f.Pending {
		b.add(" AND " + t.pending())
	}
	for _, bound := range []struct {
		at       time.Time
		operator string
	}{{f.Since, ">="}, {f.Until, "<"}} {
		switch {
		case bound.at.IsZero():
		case t.Columns.Date == "":
			return fmt.Errorf("%s has no date to choose by", t.QualifiedName())
		default:
			b.add(" AND "+t.ref(t.Columns.Date)+" "+bound.operator+" CAST(? AS DATETIME(6))", timeText(bound.at))
		}
	}
	if page == "" {
		return nil
	}
	var key pageKey
	foreign := fmt.Errorf("page key %q is none of ours", page)
	if err := json.Unmarshal([]byte(page), &key); err != nil || key.Date != "" && t.Columns.Date == "" {
		return foreign
	}
	after, ok := t.key().arg(key.Key)
	if !ok {
		return foreign
	}
	id := t.ref(t.Columns.ID)
	if t.Columns.Date == "" {
		b.add(" AND "+id+" < ?", after)
		return nil
	}
	date := t.ref(t.Columns.Date)
	if key.Date == "" { // those without a date come last
		b.add(" AND "+date+" IS NULL AND "+id+" < ?", after)
		return nil
	}
	if _, err := parseTime(key.Date); err != nil {
		return foreign
	}
	b.add(" AND ("+date+" <= ? AND ("+date+" < ? OR "+id+" < ?) OR "+date+" IS NULL)", key.Date, key.Date, after)
	return nil
}

// summaryColumns are what a page of events reads of the alias t.
func (t *eventTable) summaryColumns() string {
	c := &t.Columns
	str := func(name string) string { return orElse(name, t.text, "''") }
	dateText, date, pending := "NULL", "NULL", "0"
	if t.Mark.Kind != schema.MarkNone {
		pending = parens(t.pending())
	}
	if c.Date != "" {
		dateText, date = "CAST("+t.ref(c.Date)+" AS CHAR)", t.timestamp(c.Date)
	}
	return strings.Join([]string{t.text(c.ID), dateText, str(c.Type), date, str(c.Namespace), str(c.ModelType), str(c.ModelID), pending}, ", ")
}

// ShowEvent returns one event by its id or by the key of its row. Its error is [admin.ErrNotFound] when
// neither the event table nor a delivery knows it.
func (a *Admin) ShowEvent(ctx context.Context, id string) (admin.EventStory, error) {
	var story admin.EventStory
	err := a.withTable(ctx, func(t *eventTable, o *ourTables) error {
		return a.ask(ctx, func(q querier) (err error) {
			story = admin.EventStory{}
			if err := a.eventRow(ctx, q, t, clean(id), &story); err != nil {
				return err
			}
			story.Deliveries, err = a.stories(ctx, q, o, (&statement{}).add("d.event_id IN ").list(o.eventID.ids(a.eventIDs(id))))
			return err
		})
	})
	switch {
	case err != nil:
		return admin.EventStory{}, fmt.Errorf("event %s: %w", id, err)
	case !story.InTable && len(story.Deliveries) == 0:
		return admin.EventStory{}, fmt.Errorf("event %s: %w", id, admin.ErrNotFound)
	case !story.InTable:
		story.Event = story.Deliveries[0].Event
	case len(story.Deliveries) > 0 && a.table.Mark.Kind == schema.MarkNone:
		story.Pending = false // deliveries are all that says so
	}
	return story, nil
}

// eventRow reads the row with the key. A text that cannot be a key is no row.
func (a *Admin) eventRow(ctx context.Context, q querier, t *eventTable, key string, story *admin.EventStory) error {
	c := t.key()
	if c.kind == kindUUID || c.kind == kindBinaryUUID {
		parsed, err := uuid.Parse(key)
		if err != nil {
			return nil //nolint:nilerr // not a key of this table
		}
		key = parsed.String()
	}
	arg, ok := c.arg(key)
	if !ok {
		return nil
	}
	// The second half is for collations, and for spellings of a number, to which other texts are equal.
	where := (&statement{}).add(" FROM "+t.from+" AS t WHERE "+t.ref(t.Columns.ID)+" = ? AND "+bytesOf(t.text(t.Columns.ID))+" = "+bytesOf("?"), arg, key)
	if err := q.QueryRowContext(ctx, "SELECT COUNT(*)"+where.sql.String(), where.args...).Scan(&story.Rows); err != nil {
		return err
	}
	found, err := collect(ctx, q, t.scanEvent, "SELECT "+t.eventValues()+where.sql.String()+" LIMIT 1", where.args...)
	if len(found) > 0 {
		story.InTable, story.Event.Event, story.Pending = true, found[0].Event, found[0].pending
	}
	return err
}
