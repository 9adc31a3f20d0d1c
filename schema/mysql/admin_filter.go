package mysql

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// where adds the condition on the alias d.
func (a *Admin) where(ctx context.Context, q querier, o *ourTables, f admin.Filter, b *statement) error {
	b.add("1 = 1")
	if f.IDs != nil {
		b.add(" AND d.id IN ").list(o.id.uuids(f.IDs))
	}
	if f.Event != "" {
		b.add(" AND d.event_id IN ").list(o.eventID.ids(a.eventIDs(f.Event)))
	}
	if f.Handler != "" {
		names, err := a.namesOf(ctx, q, clean(f.Handler))
		if err != nil {
			return err
		}
		b.add(" AND ").exactly("d.handler_name", names...)
	}
	if len(f.States) > 0 {
		list := make([]any, len(f.States))
		for i, s := range f.States {
			if !slices.Contains(delivery.States(), s) {
				return fmt.Errorf("%q is not a state", s)
			}
			list[i] = string(s)
		}
		b.add(" AND d.state IN ").list(list)
	}
	if prefix, ok := strings.CutSuffix(f.Type, "*"); ok {
		b.add(" AND ").begins("d.event_type", prefix)
	} else if f.Type != "" {
		b.add(" AND ").exactly("d.event_type", f.Type)
	}
	if f.Reason != "" {
		b.add(" AND ").exactly("d.reason", f.Reason)
	}
	if !f.Since.IsZero() {
		b.add(" AND d.event_date >= CAST(? AS DATETIME(6))", timeText(f.Since))
	}
	if !f.Until.IsZero() {
		b.add(" AND d.event_date < CAST(? AS DATETIME(6))", timeText(f.Until))
	}
	return nil
}

// exactly adds the condition that a text is one of the values. The first half is for an index, the
// second for collations to which other texts are equal.
func (b *statement) exactly(ref string, values ...string) *statement {
	list := make([]any, len(values))
	for i, v := range values {
		list[i] = v
	}
	b.add(ref + " IN ").list(list).add(" AND " + bytesOf("CONVERT("+ref+" USING utf8mb4)") + " IN (")
	for i, v := range list {
		b.add([]string{"", ", "}[min(i, 1)]+bytesOf("?"), v)
	}
	return b.add(")")
}

// begins adds the condition that a text begins with the prefix, to the byte.
func (b *statement) begins(ref, prefix string) {
	if prefix == "" {
		b.add(ref + " IS NOT NULL")
		return
	}
	b.add(ref+" LIKE ? ESCAPE '|' AND ", strings.NewReplacer("|", "||", "%", "|%", "_", "|_").Replace(prefix)+"%")
	b.add("LEFT("+bytesOf("CONVERT("+ref+" USING utf8mb4)")+", ?) = "+bytesOf("?"), len(prefix), prefix)
}

// eventIDs are the event ids that a text can mean: a UUID in any spelling, or a key.
func (a *Admin) eventIDs(text string) []string {
	id, _ := schema.EventID(a.table.QualifiedName(), text)
	ids := []string{id}
	if parsed, err := uuid.Parse(text); err == nil && parsed.String() != id {
		ids = append(ids, parsed.String())
	}
	return ids
}

// namesOf returns a handler's name and its aliases.
func (a *Admin) namesOf(ctx context.Context, q querier, handler string) ([]string, error) {
	list, err := a.registered(ctx, q, "")
	if err != nil {
		return nil, err
	}
	names := []string{handler}
	for _, h := range list {
		if h.Name == handler {
			names = append(names, h.Aliases...)
		}
	}
	return names, nil
}

// texts reads a JSON array of texts.
type texts struct{ list *[]string }

// Scan implements [sql.Scanner].
func (t texts) Scan(v any) error {
	var document string
	if err := (textTarget{&document}).Scan(v); err != nil {
		return err
	}
	*t.list = nil
	return json.Unmarshal([]byte(document), t.list)
}
