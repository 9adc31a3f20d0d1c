package mysql

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// RecordGap implements pipeline.GapStore. A gap like one that is still open is not
// stored again: the table has a key for open gaps.
func (s *Store) RecordGap(ctx context.Context, source string, gap cdc.Gap) error {
	err := s.change(ctx, func(q querier) error {
		_, err := q.ExecContext(ctx, "INSERT INTO "+s.names.gaps+" (source, reason, detail, from_position, to_position, detected_date) VALUES (?, ?, ?, ?, ?, "+
			s.now+") ON DUPLICATE KEY UPDATE detected_date = "+s.names.gaps+".detected_date",
			clean(source), clean(gap.Reason), clean(gap.Detail), string(gap.From), string(gap.To))
		return err
	})
	if err != nil {
		return fmt.Errorf("record gap of source %s: %w", source, err)
	}
	return nil
}

// CloseGaps implements pipeline.GapStore.
func (s *Store) CloseGaps(ctx context.Context, source string, at time.Time) error {
	err := s.change(ctx, func(q querier) error {
		_, err := q.ExecContext(ctx, "UPDATE "+s.names.gaps+" SET closed_date = "+s.now+
			" WHERE source = ? AND closed_date IS NULL AND (detected_date <= CAST(? AS DATETIME(6)) OR detected_date > "+s.now+")", clean(source), timeText(at))
		return err
	})
	if err != nil {
		return fmt.Errorf("close gaps of source %s: %w", source, err)
	}
	return nil
}

// Looked implements pipeline.PollStore. The row may not be there yet; whoever reports the source's status
// fills it in.
func (s *Store) Looked(ctx context.Context, source string, at time.Time) error {
	err := s.change(ctx, func(q querier) error {
		if err := s.ensureSource(ctx, q, source); err != nil {
			return err
		}
		_, err := q.ExecContext(ctx, "UPDATE "+s.names.sources+" SET looked_date = CASE WHEN looked_date IS NULL OR looked_date > "+s.now+
			" THEN CAST(? AS DATETIME(6)) ELSE GREATEST(looked_date, CAST(? AS DATETIME(6))) END WHERE name = ?", timeText(at), timeText(at), clean(source))
		return err
	})
	if err != nil {
		return fmt.Errorf("record the look of source %s: %w", source, err)
	}
	return nil
}

// ensureSource makes the source's row when there is none.
func (s *Store) ensureSource(ctx context.Context, q querier, source string) error {
	_, err := q.ExecContext(ctx, "INSERT INTO "+s.names.sources+" (name, owner, mode, detail, position, updated_date) VALUES (?, '', '', '', '', "+
		s.now+") ON DUPLICATE KEY UPDATE owner = "+s.names.sources+".owner", clean(source))
	return err
}

// lookFromSQL is where a look of a source that is bounded begins to count back. It takes the source twice.
func (s *Store) lookFromSQL() string {
	return "LEAST(" + s.now + ", COALESCE((SELECT o.looked_date FROM " + s.names.sources + " AS o WHERE o.name = ?), " + s.now + ")" +
		", COALESCE((SELECT MIN(g.detected_date) FROM " + s.names.gaps + " AS g WHERE g.source = ? AND g.closed_date IS NULL), " + s.now + "))"
}

// RecordSource stores what a source is doing, so that it can be seen from outside the process. A
// process that only stands by does not overwrite what the one that reads has to say. The position is not written
// here: it is the place to go on from, and belongs to the tenure.
func (s *Store) RecordSource(ctx context.Context, source, owner string, status cdc.Status) error {
	reads := status.Mode == cdc.ModeStreaming || status.Mode == cdc.ModeCatchingUp ||
		status.Mode == cdc.ModeWaitingForStandby || status.Mode == cdc.ModePolling
	err := s.change(ctx, func(q querier) error {
		if err := s.ensureSource(ctx, q, source); err != nil {
			return err
		}
		_, err := q.ExecContext(ctx, "UPDATE "+s.names.sources+" SET owner = ?, mode = ?, detail = ?, updated_date = "+s.now+
			" WHERE name = ? AND (? OR owner IN (?, ''))", clean(owner), string(status.Mode), clean(status.Detail), clean(source), reads, clean(owner))
		return err
	})
	if err != nil {
		return fmt.Errorf("record status of source %s: %w", source, err)
	}
	return nil
}
