package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

const recordGapSQL = `
INSERT INTO {gaps} (source, reason, detail, from_position, to_position, detected_date)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, {now})
ON CONFLICT (source, reason, from_position, to_position) WHERE closed_date IS NULL DO NOTHING`

// RecordGap implements pipeline.GapStore. A gap like one that is still open is not
// stored again. It is durable: the log is confirmed beyond the gap, and nobody would announce it again.
func (s *Store) RecordGap(ctx context.Context, source string, gap cdc.Gap) error {
	if err := again(ctx, func() error {
		return s.changeOnly(ctx, s.sql.recordGap, clean(source), clean(gap.Reason), clean(gap.Detail), string(gap.From), string(gap.To))
	}); err != nil {
		return fmt.Errorf("record gap of source %s: %w", source, err)
	}
	return nil
}

const closeGapsSQL = `
UPDATE {gaps} AS g SET closed_date = c.now
FROM (SELECT {now} AS now) AS c
WHERE g.source = $1::text AND g.closed_date IS NULL AND (g.detected_date <= $2::text::timestamp OR g.detected_date > c.now)`

// CloseGaps implements pipeline.GapStore.
func (s *Store) CloseGaps(ctx context.Context, source string, at time.Time) error {
	if err := again(ctx, func() error {
		_, err := s.exec(ctx, s.sql.closeGaps, clean(source), timestampText(at))
		return err
	}); err != nil {
		return fmt.Errorf("close gaps of source %s: %w", source, err)
	}
	return nil
}

// lookedSQL: the row may not be there yet; whoever reports the source's status fills it in.
const lookedSQL = `
INSERT INTO {sources} AS s (name, owner, mode, detail, position, updated_date, looked_date)
SELECT $1::text, '', '', '', '', c.now, $2::text::timestamp FROM (SELECT {now} AS now) AS c
ON CONFLICT (name) DO UPDATE SET
    looked_date = CASE WHEN s.looked_date > EXCLUDED.updated_date THEN EXCLUDED.looked_date
                       ELSE GREATEST(s.looked_date, EXCLUDED.looked_date) END`

// Looked implements pipeline.PollStore.
func (s *Store) Looked(ctx context.Context, source string, at time.Time) error {
	if err := again(ctx, func() error {
		_, err := s.exec(ctx, s.sql.looked, clean(source), timestampText(at))
		return err
	}); err != nil {
		return fmt.Errorf("record the look of source %s: %w", source, err)
	}
	return nil
}

// lookFromSQL is where a look of the source $6 that is bounded begins to count back.
const lookFromSQL = `LEAST({now},
           (SELECT o.looked_date FROM {sources} AS o WHERE o.name = $6::text),
           (SELECT min(g.detected_date) FROM {gaps} AS g WHERE g.source = $6::text AND g.closed_date IS NULL))`

const recordSourceSQL = `
INSERT INTO {sources} AS s (name, owner, mode, detail, position, updated_date)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, {now})
ON CONFLICT (name) DO UPDATE SET
    owner = EXCLUDED.owner, mode = EXCLUDED.mode, detail = EXCLUDED.detail,
    position = CASE WHEN EXCLUDED.position = '' AND EXCLUDED.mode <> 'polling' THEN s.position ELSE EXCLUDED.position END,
    updated_date = EXCLUDED.updated_date
WHERE $6::boolean OR s.owner IN (EXCLUDED.owner, '')`

// Position returns the position of a source as last recorded, empty when there is none: the source was never read from a
// log, or is polled. A process that has not confirmed anything yet does not erase it.
func (s *Store) Position(ctx context.Context, source string) (position cdc.Position, err error) {
	err = s.queryRow(ctx, s.sql.position, clean(source)).Scan(&position)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("look up the position of source %s: %w", source, err)
	}
	return position, nil
}

const positionSQL = `SELECT s.position FROM {sources} AS s WHERE s.name = $1::text`

// RecordSource stores what a source is doing, so that it can be seen from outside the process. A
// process that only stands by does not overwrite what the one that reads has to say.
func (s *Store) RecordSource(ctx context.Context, source, owner string, status cdc.Status) error {
	reads := status.Mode == cdc.ModeStreaming || status.Mode == cdc.ModeCatchingUp ||
		status.Mode == cdc.ModeWaitingForStandby || status.Mode == cdc.ModePolling
	if err := again(ctx, func() error {
		_, err := s.exec(ctx, s.sql.recordSource,
			clean(source), clean(owner), string(status.Mode), clean(status.Detail), string(status.Confirmed), reads)
		return err
	}); err != nil {
		return fmt.Errorf("record status of source %s: %w", source, err)
	}
	return nil
}
