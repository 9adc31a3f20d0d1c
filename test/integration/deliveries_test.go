package integration

import (
	"context"
	"os"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// snapshotDeliveries reads every delivery row as text, by its id.
func (w *world) snapshotDeliveries() map[string]string {
	w.t.Helper()
	rows, err := w.db.Table(w.t.Context(), `SELECT n.id, n.* FROM eventlog.event_notifications n`)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]string{}
	for _, row := range rows {
		out[row[0]] = strings.Join(row[1:], " | ")
	}
	return out
}

// sameDeliveries fails the test when a delivery row is not what it was.
func (w *world) sameDeliveries(before map[string]string) {
	w.t.Helper()
	if diff := cmp.Diff(before, w.snapshotDeliveries()); diff != "" {
		w.t.Errorf("delivery rows changed (-before +after):\n%s", diff)
	}
}

// touch creates an empty file.
func (w *world) touch(path string) {
	w.t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// onConn runs statements on a connection of its own.
func (w *world) onConn(dsn string, run func(exec func(sql string))) {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(w.t.Context())) }() // nothing is left in it
	run(func(sql string) {
		w.t.Helper()
		if _, err := conn.Exec(w.t.Context(), sql); err != nil {
			w.t.Fatalf("%v\nin: %s", err, sql)
		}
	})
}
