package workload

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// postgresSession sends a whole transaction but its end in one round trip.
type postgresSession struct {
	conn           *pgx.Conn
	events, insert string
	tx             pgx.Tx // nil when none runs
}

const postgresColumns = `id, namespace, action_id, action_name, action_params,
		started_date, completion_date, model_id, model_type, event_type, payload, event_date, delivered`

func connectPostgres(ctx context.Context, dsn, events string) (session, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	return &postgresSession{conn: conn, events: events, insert: `INSERT INTO ` + events + ` (` + postgresColumns + `)
		VALUES ($1, 'shop.orders', $2, 'ChangeOrder', jsonb_build_object('order', $3::text),
		$4, $4, $3::text, 'Order', $5, $6::text::jsonb, $4, false)`}, nil
}

func (s *postgresSession) write(ctx context.Context, c change) (err error) {
	if s.tx, err = s.conn.Begin(ctx); err != nil {
		s.tx = nil
		return fmt.Errorf("begin: %w", err)
	}
	var b pgx.Batch
	b.Queue(`INSERT INTO shop.orders VALUES ($1, $2, $3, clock_timestamp() AT TIME ZONE 'UTC')`, c.order, c.customer, c.total)
	if !c.bulk {
		s.queue(&b, c.order, c.kept)
	}
	if len(c.undone) > 0 {
		b.Queue(`SAVEPOINT part`)
		s.queue(&b, c.order, c.undone)
		b.Queue(`ROLLBACK TO SAVEPOINT part`)
	}
	if c.hold > 0 {
		b.Queue(`SELECT pg_sleep($1)`, c.hold)
	}
	if err := s.tx.SendBatch(ctx, &b).Close(); err != nil || !c.bulk {
		return err
	}
	return s.copy(ctx, c.order, c.kept)
}

// copy inserts all rows with one COPY.
func (s *postgresSession) copy(ctx context.Context, order string, rows []row) error {
	var b bytes.Buffer
	out := csv.NewWriter(&b)
	for _, r := range rows {
		date := r.date.Format("2006-01-02 15:04:05.999999")
		payload := "" // NULL
		if r.payload != nil {
			payload = *r.payload
		}
		record := []string{r.id, "shop.orders", r.action, "ChangeOrder", `{"order": "` + order + `"}`,
			date, date, order, "Order", r.eventType, payload, date, "false"}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	_, err := s.conn.PgConn().CopyFrom(ctx, &b, `COPY `+s.events+` (`+postgresColumns+`) FROM STDIN (FORMAT csv)`)
	return err
}

func (s *postgresSession) queue(b *pgx.Batch, order string, rows []row) {
	for _, r := range rows {
		b.Queue(s.insert, r.id, r.action, order, r.date, r.eventType, r.payload)
	}
}

func (s *postgresSession) breakOrder(ctx context.Context, order string) error {
	if _, err := s.tx.Exec(ctx, `UPDATE shop.orders SET total_cents = -1 WHERE id = $1`, order); err == nil {
		return errAccepted
	}
	return nil
}

func (s *postgresSession) commit(ctx context.Context) error { return s.tx.Commit(ctx) }

func (s *postgresSession) rollback(ctx context.Context) error {
	if s.tx == nil {
		return nil
	}
	return s.tx.Rollback(ctx)
}

func (s *postgresSession) lost() bool { return s.conn.IsClosed() }

// close: the server cleans up after a lost session by itself.
func (s *postgresSession) close(ctx context.Context) { _ = s.conn.Close(ctx) }
