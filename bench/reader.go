package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	wal "github.com/cdc-dispatcher/cdc-dispatcher/cdc/postgres"
)

// readAll reads the same committed events three ways, each from a slot of its own that was made
// before they were committed.
func readAll(ctx context.Context, b *bench) error {
	for round := range b.rounds {
		err := b.with(ctx, func(w *world) error {
			if err := w.migrateEvents(ctx); err != nil {
				return err
			}
			for _, slot := range []string{"bare", "tool"} {
				if _, err := w.pool.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot); err != nil {
					return err
				}
			}
			if err := w.insertEvents(ctx, 0, b.events, b.perTx); err != nil {
				return err
			}
			if err := w.settle(ctx); err != nil {
				return err
			}
			var ours, bare, tool float64
			err := inTurn(round,
				func() (err error) {
					ours, err = w.rated(func() error { return w.profiled(ctx, "reader", func() error { return w.readOurs(ctx) }) })
					return err
				},
				func() (err error) {
					bare, err = w.rated(func() error { return w.profiled(ctx, "reader bare", func() error { return w.readBare(ctx) }) })
					return err
				})
			if err != nil {
				return err
			}
			b.report.show("reader", "cdc-dispatcher", "events/s", ours)
			b.report.show("reader", "bare pglogrepl loop", "events/s", bare)
			b.report.ratio("reader, over a bare loop", "≥ 0.95", ours/bare)
			tool, err = w.rated(func() error { return w.readTool(ctx) })
			if errors.Is(err, exec.ErrNotFound) {
				b.report.Setup["pg_recvlogical"] = "not on this machine"
				return nil
			}
			if err != nil {
				return err
			}
			b.report.show("reader", "pg_recvlogical", "events/s", tool)
			b.report.ratio("reader, over pg_recvlogical", "≥ 1.0", ours/tool)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) rated(read func() error) (float64, error) {
	begun := time.Now()
	err := read()
	return float64(w.b.events) / time.Since(begun).Seconds(), err
}

// readOurs takes what the reader hands over and acknowledges it, as a pipeline does, without a fan-out.
func (w *world) readOurs(ctx context.Context) error {
	source, err := wal.New(wal.Config{DSN: w.dsn(), Tables: []wal.Table{{Schema: "eventlog", Name: "events"}}, Create: true})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	out := make(chan cdc.Transaction, 4)
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx, out) }()
	for n := 0; n < w.b.events; {
		select {
		case tx := <-out:
			n += len(tx.Records)
			source.Ack(tx.Position)
		case err := <-done:
			return fmt.Errorf("the reader ended after %d events: %w", n, err)
		}
	}
	stop()
	return <-done
}

// readBare is the least that a program can do with pglogrepl: receive, parse, count, confirm once a second.
func (w *world) readBare(ctx context.Context) error {
	conn, err := pgconn.Connect(ctx, w.dsn()+"&replication=database")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = pglogrepl.StartReplication(ctx, conn, "bare", 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'cdc_dispatcher'"},
	})
	if err != nil {
		return err
	}
	var at pglogrepl.LSN
	said := time.Now()
	for n := 0; n < w.b.events; {
		message, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok || data.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		log, err := pglogrepl.ParseXLogData(data.Data[1:])
		if err != nil {
			return err
		}
		parsed, err := pglogrepl.Parse(log.WALData)
		if err != nil {
			return err
		}
		switch m := parsed.(type) {
		case *pglogrepl.InsertMessage:
			n++
		case *pglogrepl.CommitMessage:
			at = m.TransactionEndLSN
		}
		if time.Since(said) > time.Second {
			said = time.Now()
			if err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: at}); err != nil {
				return err
			}
		}
	}
	return nil
}

// readTool runs pg_recvlogical until the end of the log, into a file that is thrown away.
func (w *world) readTool(ctx context.Context) error {
	path, err := exec.LookPath("pg_recvlogical")
	if err != nil {
		return err
	}
	var end string
	if err := w.pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, path, "--dbname="+w.dsn(), "--slot=tool", "--start", "--no-loop", "--endpos="+end,
		"--file="+filepath.Join(dir, "out"), "-o", "proto_version=1", "-o", "publication_names=cdc_dispatcher")
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	return cmd.Run()
}
