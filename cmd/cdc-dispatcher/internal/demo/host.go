package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
)

// slotName is the demo's replication slot and publication.
const slotName = "cdc_dispatcher_demo"

// cleanTimeout bounds the cleaning of somebody else's server.
const cleanTimeout = 30 * time.Second

// host is the database that the demo works in.
type host struct {
	dsn string
	// look is what a person types to look into it; it holds no secret.
	look string
	// origin says where the server comes from, version what it is.
	origin, version string
	// slot is the name of the replication slot, where there are slots; empty when the server gives no log.
	slot string
	// close removes everything that was made; farewell says so in words.
	close    func(context.Context) error
	farewell string
}

// openHost starts a throw-away server, or makes a database on the one that dsn names.
func openHost(ctx context.Context, dsn string, say func(string)) (*host, error) {
	if dsn != "" {
		return borrow(ctx, dsn)
	}
	install, err := localserver.EnsurePostgres(ctx, say)
	if err != nil {
		return nil, err
	}
	say("starting a throw-away PostgreSQL from " + install.String())
	server, err := localserver.StartPostgres(ctx, localserver.PostgresOptions{Install: &install})
	if err != nil {
		return nil, err
	}
	h := &host{
		dsn: server.DSN("postgres"), look: fmt.Sprintf("psql -h %s -p %d -U postgres -c", server.Host(), server.Port()),
		origin: server.Origin(), slot: slotName,
		close:    func(context.Context) error { return server.Close() },
		farewell: "stopping the throw-away server and removing its files",
	}
	conn, err := pgx.Connect(ctx, h.dsn)
	if err == nil {
		h.version, err = version(ctx, conn)
		err = errors.Join(err, conn.Close(ctx))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look at the new server: %w", err), server.Close())
	}
	return h, nil
}

func version(ctx context.Context, conn *pgx.Conn) (string, error) {
	var v string
	err := conn.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&v)
	v, _, _ = strings.Cut(v, " ") // without the packager's remark
	return "PostgreSQL " + v, err
}

// borrow makes a database of its own on somebody else's server. Its close drops
// the database, with the slot and publication in it.
func borrow(ctx context.Context, dsn string) (*host, error) {
	if _, err := pgxpool.ParseConfig(dsn); err != nil {
		return nil, errors.New("the connection string of --dsn cannot be read") // the parser's message may quote the password
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to the server of --dsn: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing is left in it

	var tail [4]byte
	_, _ = rand.Read(tail[:]) // never fails, by its documentation
	name := slotName + "_" + hex.EncodeToString(tail[:])
	h := &host{
		origin: "the server of --dsn", look: "psql -d " + name + " -c",
		close:    func(ctx context.Context) error { return giveBack(ctx, dsn, name) },
		farewell: "dropping the demo's database and replication slot",
	}
	if h.dsn, err = withDatabase(dsn, name); err != nil {
		return nil, err
	}
	if h.version, err = version(ctx, conn); err != nil {
		return nil, fmt.Errorf("ask for the server's version: %w", err)
	}
	var level string
	if err := conn.QueryRow(ctx, `SHOW wal_level`).Scan(&level); err != nil {
		return nil, fmt.Errorf("ask for wal_level: %w", err)
	}
	if level == "logical" {
		h.slot = name
	}
	if _, err := conn.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize()); err != nil {
		return nil, fmt.Errorf("create a database for the demo: %w", err)
	}
	return h, nil
}

// giveBack drops the demo's database and its slot.
func giveBack(ctx context.Context, dsn, name string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to remove the database %s and its slot: %w", name, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing is left in it
	if err := dropSlot(ctx, conn, name); err != nil {
		return fmt.Errorf("drop the replication slot %s: %w", name, err)
	}
	if _, err := conn.Exec(ctx, `DROP DATABASE `+pgx.Identifier{name}.Sanitize()+` WITH (FORCE)`); err != nil {
		return fmt.Errorf("drop the database %s: %w", name, err)
	}
	return nil
}

// dropSlot waits for the session that used the slot, which has just been closed, and
// drops it; a slot that is not there is fine.
func dropSlot(ctx context.Context, conn *pgx.Conn, name string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var active bool
		err := conn.QueryRow(ctx, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, name).Scan(&active)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return err
		case !active:
			_, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, name)
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// withDatabase returns dsn, a URL or key=value pairs, with another database.
func withDatabase(dsn, name string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " dbname=" + name, nil // the last one of a key counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("--dsn is not a valid URL") // the parser's message would quote the password
	}
	u.Path, u.RawPath = "/"+name, ""
	q := u.Query()
	q.Del("dbname")
	q.Del("database")
	u.RawQuery = q.Encode()
	return u.String(), nil
}
