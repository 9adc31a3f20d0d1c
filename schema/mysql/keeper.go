package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"

	mysqldriver "github.com/go-sql-driver/mysql"
)

// Keeper decides which process reads a source, and keeps the source's position in the table sources.
// It is what package cdc/mysql asks for:
//
//	mysql.KeeperOf(store.Keeper("orders", "host/1").Acquire)
type Keeper struct {
	store         *Store
	source, owner string
}

// Keeper returns the keeper of a source for this process, which calls itself owner.
func (s *Store) Keeper(source, owner string) *Keeper {
	return &Keeper{store: s, source: clean(source), owner: clean(owner)}
}

// tenureTimeout is after how many seconds without a [Tenure.Check] the server ends the session, and with it the
// lock: a holder whose host is gone, or that is cut off, does not keep the others from reading.
const tenureTimeout = 30

// lockName is a name for GET_LOCK, which takes 64 characters and does not tell capitals apart.
func (k *Keeper) lockName() string {
	sum := sha256.Sum256([]byte(strconv.Itoa(len(k.store.schema)) + k.store.schema + k.source))
	return fmt.Sprintf("cdc-dispatcher.read.%x", sum[:12])
}

// Acquire tries to become the reader and does not wait for another one to go. When another process is the reader, tenure
// is nil, holder names that process, and err is nil.
//
// The lock is the server's own, and belongs to one session; the epoch in the table makes sure that a reader who
// has lost the lock without knowing writes no position any more.
func (k *Keeper) Acquire(ctx context.Context) (tenure *Tenure, holder string, err error) {
	tenure, holder, err = k.acquire(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("become the reader of source %s: %w", k.source, err)
	}
	return tenure, holder, nil
}

func (k *Keeper) acquire(ctx context.Context) (_ *Tenure, holder string, err error) {
	srv, err := k.store.serverOf(ctx)
	if err != nil {
		return nil, "", err
	}
	conn, err := k.store.pool.Conn(ctx)
	if err != nil {
		return nil, "", err
	}
	t := &Tenure{keeper: k, conn: conn}
	kept := false
	defer func() {
		if !kept {
			discard(conn)
		}
	}()
	setup := srv.session + strconv.Itoa(lockSeconds) + ", wait_timeout = " + strconv.Itoa(tenureTimeout)
	if _, err := conn.ExecContext(ctx, setup); err != nil {
		return nil, "", fmt.Errorf("set up the session: %w", err)
	}
	var got sql.NullBool
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 0)", k.lockName()).Scan(&got); err != nil {
		return nil, "", err
	}
	if !got.Valid {
		return nil, "", errors.New("the server gives no named lock")
	}
	if !got.Bool {
		holder, err := k.holder(ctx, conn)
		return nil, holder, err
	}
	if err := again(ctx, func() error { return t.begin(ctx) }); err != nil {
		return nil, "", err
	}
	kept = true
	return t, "", nil
}

// holder names the process that is the reader, as well as is known.
func (k *Keeper) holder(ctx context.Context, conn *sql.Conn) (string, error) {
	var owner, session string
	err := conn.QueryRowContext(ctx, "SELECT COALESCE((SELECT owner FROM "+k.store.names.sources+" WHERE name = ?), ''), IS_USED_LOCK(?)",
		k.source, k.lockName()).Scan(textTarget{&owner}, textTarget{&session})
	if session != "" {
		session = "session " + session
	}
	return strings.Trim(owner+" ("+strings.TrimSpace(session+" of the database")+")", " "), err
}

// Tenure is the time for which this process is the reader. One goroutine uses it. It owns one connection of the pool,
// until it is released.
type Tenure struct {
	keeper             *Keeper
	conn               *sql.Conn
	epoch              uint64
	position, identity string
}

// ErrTenureLost says that another process is the reader, or may be.
var ErrTenureLost = errors.New("another process is the reader now")

// begin counts the epoch up, which ends whatever tenure there was.
func (t *Tenure) begin(ctx context.Context) error {
	k, s := t.keeper, t.keeper.store
	return transaction(ctx, t.conn, func(q querier) error {
		if err := s.ensureSource(ctx, q, k.source); err != nil {
			return err
		}
		if err := q.QueryRowContext(ctx, "SELECT epoch, position, identity FROM "+s.names.sources+" WHERE name = ? FOR UPDATE", k.source).
			Scan(&t.epoch, textTarget{&t.position}, textTarget{&t.identity}); err != nil {
			return err
		}
		t.epoch++
		_, err := q.ExecContext(ctx, "UPDATE "+s.names.sources+" SET epoch = ?, owner = ?, updated_date = "+s.now+" WHERE name = ?", t.epoch, k.owner, k.source)
		return err
	})
}

// Epoch is greater than that of every earlier tenure of the source, and never zero.
func (t *Tenure) Epoch() uint64 { return t.epoch }

// Saved is the position, and the identity of the server that it is of, as they were kept when the tenure
// began. Both are empty when nothing was ever saved.
func (t *Tenure) Saved() (position, identity string) { return t.position, t.identity }

// Check returns nil while this is the latest tenure. It must be called more often than every 30 s.
func (t *Tenure) Check(ctx context.Context) error {
	k := t.keeper
	var locked bool
	var epoch uint64
	err := t.conn.QueryRowContext(ctx, "SELECT COALESCE(IS_USED_LOCK(?) = CONNECTION_ID(), 0), COALESCE((SELECT epoch FROM "+
		k.store.names.sources+" WHERE name = ?), 0)", k.lockName(), k.source).Scan(&locked, &epoch)
	switch {
	case err != nil:
		return fmt.Errorf("check the tenure of source %s: %w", k.source, err)
	case !locked || epoch != t.epoch:
		return fmt.Errorf("check the tenure of source %s: %w", k.source, ErrTenureLost)
	}
	return nil
}

// Save keeps a position, in a transaction of its own, if this is the latest tenure. A deadlock, or a lock that is
// held, is tried again.
func (t *Tenure) Save(ctx context.Context, position, identity string) error {
	k, s := t.keeper, t.keeper.store
	err := again(ctx, func() error {
		return transaction(ctx, t.conn, func(q querier) error {
			var epoch uint64
			if err := q.QueryRowContext(ctx, "SELECT epoch FROM "+s.names.sources+" WHERE name = ? FOR UPDATE", k.source).Scan(&epoch); err != nil {
				if errors.Is(err, sql.ErrNoRows) {
					return ErrTenureLost
				}
				return err
			}
			if epoch != t.epoch {
				return ErrTenureLost
			}
			_, err := q.ExecContext(ctx, "UPDATE "+s.names.sources+" SET position = ?, identity = ?, updated_date = "+s.now+" WHERE name = ?",
				position, identity, k.source)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("save the position of source %s: %w", k.source, err)
	}
	return nil
}

// Release ends the tenure and its connection, so that another process can begin its own at once. A connection that
// is dead has released the lock, or the server will.
func (t *Tenure) Release(ctx context.Context) error {
	defer discard(t.conn)
	var released sql.NullBool
	err := t.conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK(?)", t.keeper.lockName()).Scan(&released)
	if err != nil && !errors.Is(err, driver.ErrBadConn) && !errors.Is(err, mysqldriver.ErrInvalidConn) && !errors.Is(err, sql.ErrConnDone) {
		return fmt.Errorf("release source %s: %w", t.keeper.source, err)
	}
	return nil
}

// discard closes a connection for good. It holds a lock, or a short timeout, that nobody else should get from the pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // which is how database/sql is told to close it
	_ = conn.Close()                                           // it is closed
}
