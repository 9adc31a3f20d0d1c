package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
)

// retryClean is the pause between two tries to remove something, tryClean bounds one of them.
const (
	retryClean = 200 * time.Millisecond
	tryClean   = 10 * time.Second
)

// Codes of the servers that decide what a scratch does.
const (
	stateObjectInUse     = "55006"
	stateDuplicateSchema = "42P06"
	stateDuplicateObject = "42710"
	stateNoPrivilege     = "42501"
	stateQueryCanceled   = "57014"
	stateReadOnly        = "25006"
	numDatabaseExists    = 1007
	numNoDatabaseRight   = 1044
	numNoGlobalRight     = 1227
	numReadOnly          = 1290
)

// scratch is everything of a bench that a server keeps: the schema or database, and on PostgreSQL
// a slot and a publication. All have one name. It has one connection.
type scratch struct {
	name   string
	db     *database
	limits benchLimits
	// remains are the statements that remove what was made, the last made first.
	remains []string
}

func openScratch(s config.Source, limits benchLimits) (*scratch, error) {
	s.MaxConnections = 1
	db, err := openDatabase(s)
	if err != nil {
		return nil, err
	}
	return &scratch{name: s.Schema, db: db, limits: limits}, nil
}

// statements of a scratch. Each may be run although there is nothing to remove.
func dropSchemaOf(db *database, name string) string {
	if db.my != nil {
		return "DROP DATABASE IF EXISTS " + name
	}
	return "DROP SCHEMA IF EXISTS " + name + " CASCADE"
}

func dropPublicationOf(name string) string { return "DROP PUBLICATION IF EXISTS " + name }

func dropSlotOf(name string) string {
	return "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '" + name + "'"
}

// all are the statements that remove everything that a scratch of this name may consist of.
func (s *scratch) all(name string) []string {
	if s.db.my != nil {
		return []string{dropSchemaOf(s.db, name)}
	}
	return []string{dropSlotOf(name), dropPublicationOf(name), dropSchemaOf(s.db, name)}
}

// ping connects, so that what keeps it from connecting is told before anything else.
func (s *scratch) ping(ctx context.Context) error {
	if s.db.my != nil {
		return s.db.my.PingContext(ctx)
	}
	return s.db.pg.Ping(ctx)
}

// leftovers names the scratches of other runs, which were killed or still run.
func (s *scratch) leftovers(ctx context.Context) (names []string, err error) {
	pattern := strings.ReplaceAll(benchPrefix, "_", `\_`) + "%"
	if s.db.my == nil {
		rows, err := s.db.pg.Query(ctx, `SELECT nspname::text FROM pg_namespace WHERE nspname LIKE $1
			UNION SELECT pubname::text FROM pg_publication WHERE pubname LIKE $1
			UNION SELECT slot_name::text FROM pg_replication_slots WHERE slot_name LIKE $1 ORDER BY 1`, pattern)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[string])
	}
	rows, err := s.db.my.QueryContext(ctx, `SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE ? ORDER BY 1`, pattern)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// makeSchema creates the schema or database. One that is there is somebody else's.
func (s *scratch) makeSchema(ctx context.Context) error {
	create := "CREATE SCHEMA " + s.name
	if s.db.my != nil {
		create = "CREATE DATABASE " + s.name + " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
	}
	err := s.make(ctx, create, dropSchemaOf(s.db, s.name))
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case isState(err, stateDuplicateSchema), isNumber(err, numDatabaseExists):
		return failed(codeExists, "run it again: every run takes another name", "%s exists already, and is not touched", s.name)
	case isState(err, stateNoPrivilege), isNumber(err, numNoDatabaseRight, numNoGlobalRight):
		grant, asked := s.grant(ctx)
		if asked != nil {
			return asked
		}
		return &failure{exit: exitDatabase, code: codePrivilege, cause: err, try: "run, as an administrator: " + grant,
			message: "the user may not create the scratch schema: " + databaseFailure("", err).message}
	}
	return err
}

// grant is the statement that lets the user create scratches.
func (s *scratch) grant(ctx context.Context) (statement string, err error) {
	if s.db.my == nil {
		err = s.db.pg.QueryRow(ctx, `SELECT format('GRANT CREATE ON DATABASE %I TO %I', current_database(), current_user)`).Scan(&statement)
		return statement, err
	}
	err = s.db.my.QueryRowContext(ctx, `SELECT CONCAT('GRANT ALL ON ', ?, ' TO ', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))`,
		"`"+strings.ReplaceAll(benchPrefix, "_", `\_`)+"%`.*").Scan(&statement)
	return statement, err
}

// makeLog creates the publication and the slot. Where somebody's transaction is open for long it cannot: a slot
// begins at a moment at which every older transaction has ended.
func (s *scratch) makeLog(ctx context.Context) error {
	err := s.make(ctx, fmt.Sprintf(`CREATE PUBLICATION %s FOR TABLE %[1]s.events WITH (publish = 'insert', publish_via_partition_root = true)`, s.name), dropPublicationOf(s.name))
	if err != nil {
		return err
	}
	err = s.make(ctx, fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput')`, s.name), dropSlotOf(s.name))
	if isState(err, stateQueryCanceled) && ctx.Err() == nil {
		return fmt.Errorf("no slot could be made within %s, because a slot waits for every transaction that is open: "+
			"SELECT pid, usename, xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start", span(s.limits.slot))
	}
	return err
}

// make runs a statement, and remembers the one that removes what it makes. The statement is asked to stop when
// ctx ends, and its answer is waited for nevertheless: nobody could tell otherwise whether there is
// something to remove.
func (s *scratch) make(ctx context.Context, create, remove string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.remains = slices.Insert(s.remains, 0, remove)
	err := s.exec(ctx, s.limits.slot, create)
	if refused(err) {
		s.remains = s.remains[1:]
	}
	return err
}

// exec runs a statement with a limit of its own.
func (s *scratch) exec(ctx context.Context, limit time.Duration, statement string) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit+tryClean)
	defer cancel()
	if s.db.my != nil {
		conn, err := s.db.my.Conn(bounded)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // nothing is left in it
		if _, err := conn.ExecContext(bounded, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", max(1, int(limit.Seconds())))); err != nil {
			return err
		}
		_, err = conn.ExecContext(bounded, statement)
		return err
	}
	conn, err := s.db.pg.Acquire(bounded)
	if err != nil {
		return err
	}
	defer conn.Release()
	end := context.AfterFunc(ctx, func() {
		_ = conn.Conn().PgConn().CancelRequest(bounded) // without it, the limit ends the statement
	})
	defer end()
	return pgx.BeginFunc(bounded, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(bounded, fmt.Sprintf("SET LOCAL statement_timeout = %d", limit.Milliseconds())); err != nil {
			return err
		}
		_, err := tx.Exec(bounded, statement)
		return err
	})
}

// remove removes everything that was made, whatever has happened before. What it cannot remove within
// the limit is the failure it returns, with the statements.
func (s *scratch) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.clean)
	defer cancel()
	var last error
	for len(s.remains) > 0 && (last == nil || ctx.Err() == nil) {
		s.remains = slices.DeleteFunc(s.remains, func(statement string) bool {
			err := s.exec(ctx, min(tryClean, s.limits.clean), statement)
			if err == nil {
				return true
			}
			last = err
			if isState(err, stateObjectInUse) {
				// The reader has left; its session on the server has not noticed.
				_ = s.exec(ctx, tryClean, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND slot_name = '"+s.name+"'")
			}
			return false
		})
		if len(s.remains) > 0 {
			sleep(ctx, retryClean)
		}
	}
	if len(s.remains) == 0 {
		return s.db.close()
	}
	reason := last.Error()
	if f := databaseFailure("", last); f != nil {
		reason = f.message
	}
	return errors.Join(&failure{exit: exitFailed, code: codeUnclean, cause: last, message: "not everything that was made could be removed: " + reason,
		try: "run by hand: " + strings.Join(s.remains, "; ") + ";"}, s.db.close())
}

// refused says that a statement has surely made nothing: the name is taken, the user may not, or nobody may. After
// every other error there may be something to remove; the statements bear it when there is not.
func refused(err error) bool {
	return isState(err, stateDuplicateSchema, stateDuplicateObject, stateNoPrivilege, stateReadOnly) ||
		isNumber(err, numDatabaseExists, numNoDatabaseRight, numNoGlobalRight, numReadOnly)
}

func isState(err error, states ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(states, pg.Code)
}

func isNumber(err error, numbers ...uint16) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains(numbers, my.Number)
}
