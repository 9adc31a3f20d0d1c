package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// Undelivered implements pipeline.PollStore. The events are what the log's decoder makes of the same
// rows, but for the form of JSON. Rows without a key or a type are left out; see [Store.CountUnidentifiable]. So is, for
// a while, a row that cannot be read, which is reported to the logger: the others are found all the same.
func (s *Store) Undelivered(ctx context.Context, q delivery.Undelivered) (delivery.Found, error) {
	var found delivery.Found
	err := s.withTable(ctx, func(t *eventTable, _ *ourTables) error {
		return s.read(ctx, func(session querier) error {
			l, err := s.newLook(session, t, q)
			if err != nil {
				return err
			}
			// Before the look itself, so that nothing that it cannot see yet is older.
			if err := session.QueryRowContext(ctx, "SELECT CAST("+s.now+" AS CHAR)").Scan(dateTarget{&l.found.At}); err != nil {
				return err
			}
			if q.Limit > 0 && (q.Types.All || len(q.Types.Exact)+len(q.Types.Prefixes) > 0) {
				err = l.look(ctx)
			}
			found = l.found
			return err
		})
	})
	if err != nil {
		return delivery.Found{}, fmt.Errorf("look for undelivered events: %w", err)
	}
	return found, nil
}

// look is one look at the event table: it finds the keys of the oldest rows, then, where their bytes are
// bounded, their sizes, and reads those that fit.
type look struct {
	*Store
	session querier
	t       *eventTable
	q       delivery.Undelivered
	// after is the place of an earlier look's end: a date, which may be null, and a key.
	after *[2]*string
	// skip holds the ids to be left out.
	skip  map[string]bool
	found delivery.Found
}

// keyed is a row of which nothing but its key and its date, as text, was read.
type keyed struct {
	key  string
	date sql.NullString
}

func (s *Store) newLook(session querier, t *eventTable, q delivery.Undelivered) (*look, error) {
	unreadable := s.unreadable.List()
	l := &look{
		Store: s, session: session, t: t, q: q,
		skip:  map[string]bool{},
		found: delivery.Found{Traceless: t.Mark.Kind == schema.MarkNone, LeftOut: len(unreadable) > 0},
	}
	if q.After != "" && l.found.Traceless {
		l.after = &[2]*string{}
		if err := json.Unmarshal([]byte(q.After), l.after); err != nil || l.after[1] == nil {
			return nil, fmt.Errorf("not the end of an earlier look: %q", q.After)
		}
	}
	for _, id := range append(unreadable, q.Skip...) {
		l.skip[id] = true
	}
	return l, nil
}

func (l *look) look(ctx context.Context) (err error) {
	var keys []keyed
	if l.t.typeIndex != "" {
		keys, err = l.keysByType(ctx)
	} else {
		keys, err = l.undelivered(ctx)
	}
	if err != nil || len(keys) == 0 {
		return err
	}
	fit, err := l.fitting(ctx, keys)
	if err != nil {
		return err
	}
	l.found.More = len(keys) >= l.q.Limit || len(fit) < len(keys)
	if l.found.More && l.found.Traceless {
		l.found.Next = place(fit[len(fit)-1])
	}
	return l.readRows(ctx, fit)
}

// place is where a row stands in the order of the looks.
func place(k keyed) string {
	at := [2]*string{nil, &k.key}
	if k.date.Valid {
		at[0] = &k.date.String
	}
	text, err := json.Marshal(at)
	if err != nil { // texts always marshal
		return ""
	}
	return string(text)
}

func scanKeyed(rows *sql.Rows) (k keyed, err error) {
	err = rows.Scan(textTarget{&k.key}, &k.date)
	return k, err
}

// keyColumns are what scanKeyed reads.
func (t *eventTable) keyColumns() string {
	date := "NULL"
	if t.Columns.Date != "" {
		date = "CAST(" + t.ref(t.Columns.Date) + " AS CHAR)"
	}
	return t.text(t.Columns.ID) + " AS k, " + date + " AS at"
}

// orderBy is oldest first, when the table has a date; rows without one come first. Looks that have pages need an
// order without ties.
func (t *eventTable) orderBy() string {
	var by []string
	if t.Columns.Date != "" {
		by = append(by, t.ref(t.Columns.Date))
	}
	if t.Mark.Kind == schema.MarkNone {
		by = append(by, t.ref(t.Columns.ID))
		if t.alike() {
			by = append(by, bytesOf(t.text(t.Columns.ID)))
		}
	}
	if len(by) == 0 {
		return ""
	}
	return " ORDER BY " + strings.Join(by, ", ")
}

// limit is how many keys are read, so that as many are left as are wanted when those to be skipped are taken out.
func (l *look) limit() int {
	if l.t.direct() {
		return l.q.Limit
	}
	return l.q.Limit + len(l.skip)
}

// notSkipped takes out the keys of events to be skipped.
func (l *look) notSkipped(keys []keyed) []keyed {
	if l.t.direct() || len(l.skip) == 0 {
		return keys
	}
	return slices.DeleteFunc(keys, func(k keyed) bool {
		id, _ := schema.EventID(l.t.QualifiedName(), k.key)
		return l.skip[id]
	})
}

// undelivered reads the keys of the oldest undelivered rows of the wanted types. In a table without a mark whose keys
// are not its events' ids it reads on until it has found as many as are wanted: which of them have deliveries can only be
// told afterwards.
func (l *look) undelivered(ctx context.Context) ([]keyed, error) {
	if !l.found.Traceless || l.t.direct() {
		keys, err := l.keys(ctx)
		keys = l.notSkipped(keys)
		return keys[:min(len(keys), l.q.Limit)], err
	}
	began := l.after
	defer func() { l.after = began }()
	var all []keyed
	for {
		keys, err := l.keys(ctx)
		if err != nil {
			return nil, err
		}
		last := len(keys) < l.limit()
		if !last {
			end := keys[len(keys)-1]
			l.after = &[2]*string{nil, &end.key}
			if end.date.Valid {
				l.after[0] = &end.date.String
			}
		}
		fresh, err := l.withoutDeliveries(ctx, l.notSkipped(keys))
		if err != nil {
			return nil, err
		}
		if all = append(all, fresh...); last || len(all) >= l.q.Limit {
			return all[:min(len(all), l.q.Limit)], nil
		}
	}
}

// withoutDeliveries takes out the keys of events that have deliveries.
func (l *look) withoutDeliveries(ctx context.Context, keys []keyed) ([]keyed, error) {
	has := map[uuid.UUID]bool{}
	idOf := func(k keyed) string {
		id, _ := schema.EventID(l.t.QualifiedName(), k.key)
		return id
	}
	for part := range slices.Chunk(keys, keysPerStatement) {
		ids := make([]string, len(part))
		for i, k := range part {
			ids[i] = idOf(k)
		}
		b := (&statement{}).add("SELECT DISTINCT " + l.t.eventID.text("d.event_id") + " FROM " + l.t.deliveries + " AS d WHERE d.event_id IN ")
		list, err := query(ctx, l.session, b.list(l.t.eventID.ids(ids)), scanID)
		if err != nil {
			return nil, err
		}
		for _, id := range list {
			has[id] = true
		}
	}
	return slices.DeleteFunc(keys, func(k keyed) bool { return has[uuid.MustParse(idOf(k))] }), nil
}

// keys reads the keys of the oldest rows of the wanted types.
func (l *look) keys(ctx context.Context) ([]keyed, error) {
	b := (&statement{}).add("SELECT " + l.t.keyColumns() + "\nFROM " + l.t.from + " AS t\nWHERE " + l.t.pending())
	l.conditions(b)
	l.matching(b)
	return query(ctx, l.session, b.add(l.t.orderBy()+" LIMIT ?", l.limit()), scanKeyed)
}

// conditions adds what holds for every row of a look, but for its mark and its type.
func (l *look) conditions(b *statement) {
	t := l.t
	b.add(" AND " + t.typed() + " AND " + t.named())
	if t.LookBack > 0 && l.found.Traceless {
		// A row without a date may be of any age, and is looked at.
		date := t.ref(t.Columns.Date)
		b.add(" AND ("+date+" IS NULL OR "+date+" >= "+l.lookFromSQL()+" - INTERVAL ? MICROSECOND)",
			clean(l.q.Source), clean(l.q.Source), micros(t.LookBack))
	}
	if l.after != nil {
		l.behind(b)
	}
	if len(l.skip) > 0 && t.direct() {
		b.add(" AND " + t.ref(t.Columns.ID) + " NOT IN ").list(t.key().args(slices.Sorted(maps.Keys(l.skip))))
	}
}

// behind adds the condition for a row behind the place of an earlier look.
func (l *look) behind(b *statement) {
	key := l.t.ref(l.t.Columns.ID)
	at, ok := l.t.key().arg(*l.after[1])
	if !ok {
		b.add(" AND FALSE")
		return
	}
	keyBehind, args := key+" > ?", []any{at}
	if l.t.alike() {
		keyBehind = "(" + key + " > ? OR " + key + " = ? AND " + bytesOf(l.t.text(l.t.Columns.ID)) + " > ?)"
		args = append(args, at, []byte(*l.after[1]))
	}
	if l.t.Columns.Date == "" {
		b.add(" AND "+keyBehind, args...)
		return
	}
	date := l.t.ref(l.t.Columns.Date)
	if l.after[0] == nil {
		b.add(" AND ("+date+" IS NOT NULL OR "+keyBehind+")", args...)
		return
	}
	b.add(" AND "+date+" >= CAST(? AS DATETIME(6)) AND ("+date+" > CAST(? AS DATETIME(6)) OR "+keyBehind+")",
		append([]any{*l.after[0], *l.after[0]}, args...)...)
}

// matching adds the condition for the wanted types. Types are compared byte by byte, whatever
// the collation.
func (l *look) matching(b *statement) {
	if l.q.Types.All {
		return
	}
	typ := bytesOf(l.t.text(l.t.Columns.Type))
	var exact []any
	for _, name := range l.q.Types.Exact {
		exact = append(exact, []byte(name))
	}
	b.add(" AND (" + typ + " IN ").list(exact)
	for _, prefix := range l.q.Types.Prefixes {
		b.add(" OR LEFT("+typ+", ?) = ?", len(prefix), []byte(prefix))
	}
	b.add(")")
}

// typesPerStatement bounds how many types are read by one statement.
const typesPerStatement = 40

// keysByType reads each wanted type by itself along the index. Reading the whole index in the order of the date would
// need a sort of everything that is undelivered, which grows without bound while a type has no
// subscriber (A54).
func (l *look) keysByType(ctx context.Context) ([]keyed, error) {
	types, err := l.types(ctx)
	if err != nil {
		return nil, err
	}
	var keys []keyed
	for part := range slices.Chunk(types, typesPerStatement) {
		b := &statement{}
		for i, typ := range part {
			if i > 0 {
				b.add("\nUNION ALL ")
			}
			b.add("(SELECT "+l.t.keyColumns()+" FROM "+l.t.from+" AS t"+l.t.typeIndex+" WHERE "+l.t.pending()+" AND "+l.t.ref(l.t.Columns.Type)+" = ?", typ)
			l.conditions(b)
			if l.grouped() {
				l.matching(b)
			} else {
				b.add(" AND "+bytesOf(l.t.text(l.t.Columns.Type))+" = ?", []byte(typ))
			}
			b.add(l.t.orderBy()+" LIMIT ?)", l.limit())
		}
		more, err := query(ctx, l.session, b, scanKeyed)
		if err != nil {
			return nil, err
		}
		keys = append(keys, l.notSkipped(more)...)
		slices.SortStableFunc(keys, func(a, b keyed) int { return cmp.Compare(a.date.String, b.date.String) })
		keys = keys[:min(len(keys), l.q.Limit)]
	}
	return keys, nil
}

// grouped says that the types have to be looked up.
func (l *look) grouped() bool { return l.q.Types.All || len(l.q.Types.Prefixes) > 0 }

// types lists the types to be read. Those that a pattern may mean are found by skipping from one to
// the next along the index. Where the collation takes several types for one, one of them stands for all.
func (l *look) types(ctx context.Context) ([]string, error) {
	if !l.grouped() {
		types := slices.Clone(l.q.Types.Exact)
		slices.Sort(types)
		return slices.Compact(types), nil
	}
	typ := l.t.ref(l.t.Columns.Type)
	there, err := skipThrough(ctx, l.session, "SELECT "+typ+" FROM "+l.t.from+" AS t"+l.t.typeIndex+" WHERE "+l.t.pending()+
		" AND "+typ+" > ? ORDER BY "+typ+" LIMIT 1")
	if err != nil || l.q.Types.All {
		return there, err
	}
	return slices.DeleteFunc(there, func(typ string) bool {
		return !slices.ContainsFunc(l.q.Types.Prefixes, func(p string) bool { return maybeBegins(typ, p) }) &&
			!slices.ContainsFunc(l.q.Types.Exact, func(e string) bool { return maybeBegins(typ, e) })
	}), nil
}

// maybeBegins says whether a type that the collation takes for typ may begin with the prefix. Only of printable ASCII
// is it known what collations make of it.
func maybeBegins(typ, prefix string) bool {
	plain := func(s string) bool {
		return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
	}
	if !plain(typ) || !plain(prefix) {
		return true
	}
	trimmed := strings.TrimRight(prefix, " ") // collations pad
	return len(typ) >= len(trimmed) && strings.EqualFold(typ[:len(trimmed)], trimmed)
}

// fitting is the beginning of the keys whose rows fit into MaxBytes, and at least the first.
func (l *look) fitting(ctx context.Context, keys []keyed) ([]keyed, error) {
	if l.q.MaxBytes <= 0 {
		return keys, nil
	}
	sizes := []string{}
	for _, name := range []string{l.t.Columns.Payload, l.t.Columns.ActionParams, l.t.Columns.Headers} {
		if name != "" {
			sizes = append(sizes, "COALESCE(LENGTH("+l.t.text(name)+"), 0)")
		}
	}
	type size struct {
		key   string
		bytes int
	}
	bytesOf := make(map[string]int, len(keys))
	for part := range slices.Chunk(keys, keysPerStatement) {
		b := (&statement{}).add("SELECT " + l.t.text(l.t.Columns.ID) + ", " + strings.Join(sizes, " + ") + " FROM " + l.t.from + " AS t" + l.t.force + " WHERE ")
		list, err := query(ctx, l.session, l.t.havingKeys(b, keysOf(part)), func(rows *sql.Rows) (s size, err error) {
			err = rows.Scan(textTarget{&s.key}, &s.bytes)
			return s, err
		})
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			bytesOf[s.key] += s.bytes
		}
	}
	total := 0
	for i, k := range keys {
		if total += bytesOf[k.key]; i > 0 && total > l.q.MaxBytes {
			return keys[:i], nil
		}
	}
	return keys, nil
}

func keysOf(list []keyed) []string {
	keys := make([]string, len(list))
	for i := range list {
		keys[i] = list[i].key
	}
	return keys
}

// readTogether is how many rows are read by one statement.
const readTogether = 500

// readRows reads the rows with the given keys, in their order. When one of them cannot be read, because of a damaged
// or an impossible value, it is found by reading ever smaller parts, and left out for a while.
func (l *look) readRows(ctx context.Context, keys []keyed) error {
	for group := range slices.Chunk(keys, readTogether) {
		bad, err := separately(group, func(part []keyed) error {
			events, err := l.rowsOf(ctx, keysOf(part))
			l.found.Events = append(l.found.Events, events...)
			return err
		})
		if err != nil && !rejected(err) {
			return err
		}
		for _, k := range bad {
			id, _ := schema.EventID(l.t.QualifiedName(), k.key)
			l.found.LeftOut = true
			if l.unreadable.Add(id) {
				l.log.Error("an undelivered event cannot be read; it is left out, and tried again from time to time",
					slog.String("table", l.t.QualifiedName()), slog.String("event_id", id), slog.Int("error_number", errorNumber(err)))
			}
		}
	}
	return nil
}

func (l *look) rowsOf(ctx context.Context, keys []string) ([]event.Event, error) {
	b := (&statement{}).add("SELECT " + l.t.eventValues() + "\nFROM " + l.t.from + " AS t" + l.t.force + "\nWHERE ")
	rows, err := query(ctx, l.session, l.t.havingKeys(b, keys), l.t.scanEvent)
	if err != nil {
		return nil, err
	}
	byKey := make(map[string][]event.Event, len(rows))
	for _, row := range rows {
		key := cmp.Or(row.Key, row.ID)
		byKey[key] = append(byKey[key], row.Event)
	}
	var events []event.Event
	for _, key := range keys {
		events = append(events, byKey[key]...)
		delete(byKey, key)
	}
	return events, nil
}

// CountUnidentifiable returns how many undelivered events can never have a delivery, because
// their row has no key. It stops counting at limit.
func (s *Store) CountUnidentifiable(ctx context.Context, limit int) (n int, err error) {
	err = s.withTable(ctx, func(t *eventTable, _ *ourTables) error {
		if k := t.key(); k.notNull && k.kind != kindText && k.kind != kindBytes {
			return nil
		}
		b := (&statement{}).add("SELECT COUNT(*) FROM (SELECT 1 FROM " + t.from + " AS t WHERE " + t.typed() + " AND " + t.nameless())
		if t.Mark.Kind != schema.MarkNone {
			b.add(" AND " + t.pending())
		} else if t.LookBack > 0 {
			date := t.ref(t.Columns.Date)
			b.add(" AND ("+date+" IS NULL OR "+date+" >= "+s.now+" - INTERVAL ? MICROSECOND)", micros(t.LookBack))
		}
		b.add(" LIMIT ?) AS nameless", limit)
		return s.read(ctx, func(q querier) error {
			return q.QueryRowContext(ctx, b.sql.String(), b.args...).Scan(&n)
		})
	})
	if err != nil {
		return 0, fmt.Errorf("count events without a key: %w", err)
	}
	return n, nil
}
