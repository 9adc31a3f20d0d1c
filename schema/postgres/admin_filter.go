package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// where returns the condition on the alias d, and adds its parameters.
func (a *Admin) where(ctx context.Context, tx pgx.Tx, f admin.Filter, args *arguments) (string, error) {
	conditions := []string{"true"}
	and := func(format string, values ...any) { conditions = append(conditions, fmt.Sprintf(format, values...)) }
	if f.IDs != nil {
		ids := make([]string, len(f.IDs))
		for i, id := range f.IDs {
			ids[i] = id.String()
		}
		and("d.id = ANY (%s::uuid[])", args.add(ids, "text[]"))
	}
	if f.Event != "" {
		and("d.event_id = ANY (%s::uuid[])", args.add(a.eventIDs(f.Event), "text[]"))
	}
	if f.Handler != "" {
		names, err := a.names(ctx, tx, f.Handler)
		if err != nil {
			return "", err
		}
		and("d.handler_name = ANY (%s)", args.add(names, "text[]"))
	}
	if len(f.States) > 0 {
		// Literals, so that the planner sees which partial index fits.
		list := make([]string, len(f.States))
		for i, s := range f.States {
			if !slices.Contains(delivery.States(), s) {
				return "", fmt.Errorf("%q is not a state", s)
			}
			list[i] = quoteText(string(s))
		}
		and("d.state IN (%s)", strings.Join(list, ", "))
	}
	if prefix, ok := strings.CutSuffix(f.Type, "*"); ok {
		and("starts_with(d.event_type, %s)", args.add(prefix, "text"))
	} else if f.Type != "" {
		and("d.event_type = %s", args.add(f.Type, "text"))
	}
	if f.Reason != "" {
		and("d.reason = %s", args.add(f.Reason, "text"))
	}
	if !f.Since.IsZero() {
		and("d.event_date >= %s::timestamp", args.add(timestampText(f.Since), "text"))
	}
	if !f.Until.IsZero() {
		and("d.event_date < %s::timestamp", args.add(timestampText(f.Until), "text"))
	}
	return strings.Join(conditions, " AND "), nil
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

// timestampText writes a time as a timestamp in UTC, whatever the time zone of the session is.
func timestampText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999") }

// names returns a handler's name and its aliases.
func (a *Admin) names(ctx context.Context, tx pgx.Tx, handler string) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT $1::text UNION SELECT unnest(aliases) FROM `+a.in("handlers")+` WHERE name = $1::text`, clean(handler))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
