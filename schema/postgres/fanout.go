package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// FanOut implements pipeline.FanOutStore. Events whose rows are in the table are fanned
// out by one statement; those whose rows cannot be marked, and those whose rows are not there, by one
// more each, as are those that are not to touch their rows. Each is a transaction, so an error after the first leaves events that are completely
// fanned out, and a repeated call does the rest.
func (s *Store) FanOut(ctx context.Context, batch delivery.FanOut) (delivery.FanOutResult, error) {
	b := newFanBatch(batch)
	if len(b.order) == 0 {
		return delivery.FanOutResult{}, nil
	}
	result := delivery.FanOutResult{Repeated: b.repeated, DuplicateIDs: b.duplicates}
	if err := s.withTable(ctx, func(t *eventTable) error { return s.fanOutRows(ctx, t, b, &result) }); err != nil {
		return delivery.FanOutResult{}, fmt.Errorf("fan out %d events: %w", len(b.order), err)
	}
	err := s.fanOutRest(ctx, b, &result)
	if err == nil {
		return result, nil
	}
	if rejected(err) {
		err = errors.Join(err, s.unlease(ctx, b, result.Created))
	}
	return delivery.FanOutResult{}, err
}

// fanOutRest fans out what fanOutRows could not.
func (s *Store) fanOutRest(ctx context.Context, b *fanBatch, result *delivery.FanOutResult) error {
	if unmarked := b.withTargets(b.unmarked); len(unmarked) > 0 {
		if err := s.withTable(ctx, func(t *eventTable) error { return s.fanOutUnmarked(ctx, t, b, unmarked, result) }); err != nil {
			return fmt.Errorf("fan out %d events that cannot be marked: %w", len(unmarked), err)
		}
	}
	if images := b.images(); len(images) > 0 {
		if err := s.withTable(ctx, func(t *eventTable) error { return s.fanOutImages(ctx, t, t.image, b, images, result) }); err != nil {
			return fmt.Errorf("fan out %d events from the log's image: %w", len(images), err)
		}
	}
	if images := b.withTargets(b.imageOnly()); len(images) > 0 {
		if err := s.withTable(ctx, func(t *eventTable) error { return s.fanOutImages(ctx, t, t.imageOnly, b, images, result) }); err != nil {
			return fmt.Errorf("fan out %d events from the log's image alone: %w", len(images), err)
		}
	}
	return nil
}

// unleaseSQL makes deliveries that were created leased what they would be without it.
const unleaseSQL = `
UPDATE {deliveries} AS d SET
    claim_count = 0, lease_token = NULL, lease_until = NULL, lease_owner = NULL, next_retry_at = GREATEST(LEAST(d.event_date, {now}), '0001-01-01')
WHERE d.id = ANY ($1::text[]::uuid[]) AND d.lease_token = $2::uuid AND d.state = 'PENDING'`

// unlease frees what was created for a caller that is told of an error instead. Without it
// the deliveries would wait for the end of their lease.
func (s *Store) unlease(ctx context.Context, b *fanBatch, created []delivery.Created) error {
	var ids []string
	for _, c := range created {
		if c.Leased {
			ids = append(ids, b.Fans[c.Fan].Targets[c.Target].ID.String())
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return again(ctx, func() error {
		return s.changeOnly(ctx, s.sql.unlease, ids, b.Lease.Token.String())
	})
}

func (s *Store) fanOutRows(ctx context.Context, t *eventTable, b *fanBatch, result *delivery.FanOutResult) error {
	if b.rows == 0 {
		return nil
	}
	all, args, err := b.rowArgs()
	if err != nil {
		return err
	}
	var (
		asAsked, allMarked bool
		inserted, leased   []pgtype.UUID
		fresh, duplicates  []int64
	)
	s.markLate(ctx, t)
	count, leases := b.count(all)
	into := []any{&asAsked, &allMarked, &inserted, &leased, &fresh, &b.absent, &duplicates, &b.unmarked}
	if err := s.changeRow(ctx, durableFor(max(b.rows, count)), into, t.fanOut, append(args, leases)...); err != nil {
		return err
	}
	result.Created = b.asked(all, count)
	if !asAsked {
		result.Created = b.created(inserted, leased)
	}
	result.Fresh = b.rows
	if !allMarked {
		result.Fresh = len(fresh)
	}
	result.Repeated = b.repeated + b.rows - result.Fresh - len(b.absent)
	result.DuplicateIDs = b.duplicates
	for _, n := range duplicates {
		if id := b.event(n).ID; !slices.Contains(b.duplicates, id) {
			result.DuplicateIDs = append(result.DuplicateIDs, id)
		}
	}
	return nil
}

// fanOutUnmarked makes the deliveries of events that are there and cannot be marked. It is
// reported once: every event of such a table is one of them.
func (s *Store) fanOutUnmarked(
	ctx context.Context, t *eventTable, b *fanBatch, unmarked []int64, result *delivery.FanOutResult,
) error {
	var ids, keys []string
	for _, n := range unmarked {
		e := b.event(n)
		ids = append(ids, e.ID)
		keys = append(keys, cmp.Or(e.Key, e.ID))
	}
	var (
		inserted, leased []pgtype.UUID
		fresh, absent    []int64
	)
	args := append([]any{unmarked, ids, keys}, b.targetArgs(unmarked)...)
	if err := s.changeRow(ctx, durable, []any{&inserted, &leased, &fresh, &absent}, t.unmarked, args...); err != nil {
		return err
	}
	b.absent = append(b.absent, absent...)
	result.Created = append(result.Created, b.created(inserted, leased)...)
	result.Unmarked = len(fresh)
	result.Repeated -= len(fresh) + len(absent)
	if len(fresh) > 0 {
		s.unmarkable.Do(func() {
			s.log.Warn("events are delivered, but the database does not let their rows be marked; "+
				"look for a trigger, a rule or a policy that suppresses the update",
				slog.String("table", t.QualifiedName()), slog.String("event_id", b.event(fresh[0]).ID))
		})
	}
	return nil
}

// fanOutImages makes the deliveries by sql, which is one of the table's image statements.
func (s *Store) fanOutImages(
	ctx context.Context, t *eventTable, sql string, b *fanBatch, images []int64, result *delivery.FanOutResult,
) error {
	var (
		inserted, leased []pgtype.UUID
		fresh, marked    []int64
	)
	args := b.imageArgs(images, t.inColumn())
	count, _ := b.count(images)
	with := durableFor(max(len(images), count))
	if err := s.changeRow(ctx, with, []any{&inserted, &leased, &fresh, &marked}, sql, args...); err != nil {
		return err
	}
	for _, n := range images {
		if slices.Contains(marked, n) {
			continue
		}
		e := b.event(n)
		s.late.add(lateEvent{id: e.ID, key: cmp.Or(e.Key, e.ID), targets: int64(len(b.Fans[b.order[n-1]].Targets)), since: time.Now()})
	}
	result.Created = append(result.Created, b.created(inserted, leased)...)
	result.Absent = len(fresh)
	result.Repeated += len(images) - len(fresh)
	return nil
}

// Quarantine implements pipeline.FanOutStore. When the database refuses the mark as well, the
// deliveries are inserted without it and the error is returned: the event is then
// visible as BLOCKED, and stays unmarked.
func (s *Store) Quarantine(ctx context.Context, fan delivery.Fan, cause error) error {
	if len(fan.Targets) == 0 {
		return fmt.Errorf("quarantine event %s: it has no targets", fan.Event.ID)
	}
	reduced, bare := reducedArgs(fan, cause), bareArgs(fan, cause)
	marked := func(t *eventTable) string { return t.quarantine }
	unmarked := func(t *eventTable) string { return t.quarantineUnmarked }
	err := s.quarantine(ctx, marked, reduced, bare)
	if err == nil {
		return nil
	}
	if rejected(err) {
		if s.quarantine(ctx, unmarked, reduced, bare) == nil {
			return fmt.Errorf("quarantine event %s: its deliveries are BLOCKED, but the database refuses its mark: %w", fan.Event.ID, err)
		}
		if absent := s.absent(ctx, fan.Event); absent != nil {
			err = errors.Join(err, absent)
		}
	}
	return fmt.Errorf("quarantine event %s: %w", fan.Event.ID, err)
}

// quarantine tries the forms in turn, until one is not refused.
func (s *Store) quarantine(ctx context.Context, sql func(*eventTable) string, forms ...[]any) (err error) {
	for _, args := range forms {
		if err = s.withTable(ctx, func(t *eventTable) error {
			return s.changeOnly(ctx, sql(t), args...)
		}); err == nil || !rejected(err) {
			return err
		}
	}
	return err
}

// absent returns [delivery.ErrAbsent] when the event has no row, and nil when it has. An error that
// keeps the question open is returned as it is; for one that lies in the key, there is no such row.
func (s *Store) absent(ctx context.Context, e event.Event) error {
	var present bool
	err := s.withTable(ctx, func(t *eventTable) error {
		return s.queryRow(ctx, t.present, cmp.Or(e.Key, e.ID)).Scan(&present)
	})
	switch {
	case err != nil && !rejected(err):
		return fmt.Errorf("look for its row: %w", err)
	case err != nil || !present:
		return delivery.ErrAbsent
	}
	return nil
}

// reducedArgs keep what is short and has a shape of its own.
func reducedArgs(fan delivery.Fan, cause error) []any {
	e := &fan.Event
	ids, handlers := targetNames(fan)
	return []any{
		e.ID, cmp.Or(e.Key, e.ID), ids, handlers,
		clean(e.Namespace), cmp.Or(e.ActionID, e.ID), clean(e.ActionName),
		timeText(e.StartedDate), timeText(e.CompletionDate),
		clean(e.ModelID), clean(e.ModelType), clean(e.Type), timeText(e.Date),
		delivery.ReasonRejected, errorCode(cause),
	}
}

// bareArgs keep what says which event it is and nothing of its content that a constraint could be about. The hash
// tells whether a copy of the payload that turns up elsewhere is the right one.
func bareArgs(fan delivery.Fan, cause error) []any {
	e := &fan.Event
	ids, handlers := targetNames(fan)
	return []any{
		e.ID, cmp.Or(e.Key, e.ID), ids, handlers, "", e.ID, "", nil, nil, "", "", clean(e.Type), nil,
		delivery.ReasonRejected, fmt.Sprintf("%s: payload of %d bytes, sha256 %x", errorCode(cause), len(e.Payload), sha256.Sum256(e.Payload)),
	}
}

func targetNames(fan delivery.Fan) (ids, handlers []string) {
	for _, target := range fan.Targets {
		ids = append(ids, target.ID.String())
		handlers = append(handlers, target.Handler)
	}
	return ids, handlers
}

// errorCode is what last_error says about a refused row: the SQLSTATE, never the
// message, which quotes values.
func errorCode(err error) string {
	if code := sqlState(err); code != "" {
		return "sqlstate_" + code
	}
	return event.Code(err)
}

// clean makes s storable: no NUL, valid UTF-8.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// jsonText is nil for an absent document.
func jsonText(raw json.RawMessage) *string {
	if raw == nil {
		return nil
	}
	text := string(raw)
	return &text
}

// timeText is a timestamp in UTC, nil for the zero time.
func timeText(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.UTC().Format("2006-01-02 15:04:05.999999")
	return &text
}
