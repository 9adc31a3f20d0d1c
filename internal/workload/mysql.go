package workload

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// SetupMySQL is [Setup] for MySQL and MariaDB: the business table is made in the
// connection's own database.
func SetupMySQL(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `
		CREATE TABLE IF NOT EXISTS orders (
			id char(36) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
			customer varchar(255) NOT NULL,
			total_cents bigint NOT NULL CHECK (total_cents > 0),
			updated datetime(6) NOT NULL) ENGINE = InnoDB`)
	if err != nil {
		return fmt.Errorf("create the business table: %w", err)
	}
	return nil
}

// mysqlSession writes statement by statement. Transactions begin and end by
// statements, because the driver would wait for the answer to a COMMIT of its own
// without the context.
type mysqlSession struct {
	pool   *sql.DB // of one connection
	conn   *sql.Conn
	insert string
	begun  bool
	broken bool
}

func connectMySQL(ctx context.Context, dsn, events string) (session, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	cfg.InterpolateParams = true // one round trip per statement
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &mysqlSession{pool: pool, conn: conn, insert: `INSERT INTO ` + events + ` (id, namespace, action_id, action_name, action_params,
		started_date, completion_date, model_id, model_type, event_type, payload, event_date, delivered)
		VALUES ` + mysqlRow}, nil
}

const mysqlRow = `(?, 'shop.orders', ?, 'ChangeOrder', JSON_OBJECT('order', ?), ?, ?, ?, 'Order', ?, ?, ?, false)`

// exec runs a statement, and notes when the connection did not survive it: then the
// error is not an answer of the server.
func (s *mysqlSession) exec(ctx context.Context, statement string, args ...any) error {
	_, err := s.conn.ExecContext(ctx, statement, args...)
	if err != nil {
		if _, answered := errors.AsType[*mysql.MySQLError](err); !answered {
			s.broken = true
		}
	}
	return err
}

func (s *mysqlSession) write(ctx context.Context, c change) error {
	if err := s.exec(ctx, `START TRANSACTION`); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	s.begun = true
	if err := s.exec(ctx, `INSERT INTO orders VALUES (?, ?, ?, UTC_TIMESTAMP(6))`, c.order, c.customer, c.total); err != nil {
		return err
	}
	insert := s.events
	if c.bulk {
		insert = s.bulk
	}
	if err := insert(ctx, c.order, c.kept); err != nil {
		return err
	}
	if len(c.undone) > 0 {
		if err := s.exec(ctx, `SAVEPOINT part`); err != nil {
			return err
		}
		if err := s.events(ctx, c.order, c.undone); err != nil {
			return err
		}
		if err := s.exec(ctx, `ROLLBACK TO SAVEPOINT part`); err != nil {
			return err
		}
	}
	if c.hold > 0 {
		return s.exec(ctx, `DO SLEEP(?)`, c.hold)
	}
	return nil
}

func (s *mysqlSession) events(ctx context.Context, order string, rows []row) error {
	for _, r := range rows {
		if err := s.exec(ctx, s.insert, mysqlValues(order, r)...); err != nil {
			return err
		}
	}
	return nil
}

// bulk inserts all rows with one statement.
func (s *mysqlSession) bulk(ctx context.Context, order string, rows []row) error {
	var args []any
	for _, r := range rows {
		args = append(args, mysqlValues(order, r)...)
	}
	return s.exec(ctx, s.insert+strings.Repeat(", "+mysqlRow, len(rows)-1), args...)
}

func mysqlValues(order string, r row) []any {
	return []any{r.id, r.action, order, r.date, r.date, order, r.eventType, r.payload, r.date}
}

func (s *mysqlSession) breakOrder(ctx context.Context, order string) error {
	if err := s.exec(ctx, `UPDATE orders SET total_cents = -1 WHERE id = ?`, order); err == nil {
		return errAccepted
	}
	return nil
}

func (s *mysqlSession) commit(ctx context.Context) error {
	s.begun = false
	return s.exec(ctx, `COMMIT`)
}

func (s *mysqlSession) rollback(ctx context.Context) error {
	if !s.begun {
		return nil
	}
	s.begun = false
	return s.exec(ctx, `ROLLBACK`)
}

func (s *mysqlSession) lost() bool { return s.broken }

// close: the server cleans up after a lost session by itself.
func (s *mysqlSession) close(context.Context) {
	_ = s.conn.Close()
	_ = s.pool.Close()
}
