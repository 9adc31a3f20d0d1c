//go:build unix

package mysql

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// outbox is the published event table, and one event of it.
const outbox = `CREATE TABLE events (
	id %[1]s NOT NULL PRIMARY KEY, namespace varchar(255) NOT NULL, action_id %[1]s NOT NULL, action_name varchar(255) NOT NULL,
	action_params json NOT NULL, started_date datetime(6) NOT NULL, completion_date datetime(6) NOT NULL, model_id varchar(255),
	model_type varchar(255), event_type varchar(255), payload json, event_date datetime(6) NOT NULL, delivered boolean NOT NULL,
	traceparent text, headers json)`

const fillOutbox = `CREATE PROCEDURE fill(n int) BEGIN
	WHILE n > 0 DO
		INSERT INTO events VALUES (%[1]s, 'shop', %[1]s, 'checkout', '{"customer": 4711, "dry": false}', now(6), now(6), 'order-12345',
			'Order', 'OrderPlaced', '{"orderId": "order-12345", "total": 199.95, "lines": [{"sku": "A-1", "count": 2, "note": "gift \\"x\\""}, {"sku": "B-2", "count": 1, "note": null}], "address": {"city": "Zürich", "zip": "8001"}}',
			now(6), false, '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', NULL);
		SET n = n - 1;
	END WHILE;
END`

// newOutbox makes the event table and a procedure that commits n events, one by one.
func newOutbox(b *testing.B, kind testdb.Kind) *testdb.MyDB {
	b.Helper()
	db := testdb.MySQL(b, kind)
	typ, id := "binary(16)", "uuid_to_bin(uuid())"
	if kind.IsMariaDB() {
		typ, id = "uuid", "uuid()"
	}
	db.Exec(fmt.Sprintf(outbox, typ))
	db.Exec(fmt.Sprintf(fillOutbox, id))
	return db
}

// BenchmarkEvents parses and assembles recorded transactions of one event each, without a
// connection.
func BenchmarkEvents(b *testing.B) {
	for _, kind := range []testdb.Kind{testdb.MySQL97, testdb.MariaDB118} {
		b.Run(kind.String(), func(b *testing.B) {
			db := newOutbox(b, kind)
			const recorded = 50
			packets := recordLog(b, db, recorded)
			parser := replication.NewBinlogParser()
			at := parsed(b, "mysql-gtid:")
			if kind.IsMariaDB() {
				parser.SetFlavor(gomysql.MariaDBFlavor)
				at = parsed(b, "mariadb-gtid:")
			}
			batch := new(logBatch)
			filter := rowsFilter{tables: newTableSet([]Table{{db.Name(), "events"}}), kept: &batch.rows}
			parser.SetRowsEventDecodeFunc(filter.filter)
			a := newAssembler(Config{Tables: []Table{{db.Name(), "events"}}, MaxRecords: 1000, MaxBytes: 1 << 20}, at, 1)
			a.lookUp = func(t Table) (definition, error) { return describe(context.Background(), db.Pool(), t) }
			records := 0
			a.emit = func(tx cdc.Transaction) error {
				records += len(tx.Records)
				return nil
			}
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += recorded {
				for _, p := range packets {
					event, err := parser.Parse(p)
					if err != nil {
						b.Fatal(err)
					}
					if err := a.take(logEvent{event, &batch.rows}); err != nil {
						b.Fatal(err)
					}
					batch.reset()
				}
			}
			if records < b.N {
				b.Fatalf("%d records", records)
			}
		})
	}
}

// recordLog is what the server sends of n events.
func recordLog(b *testing.B, db *testdb.MyDB, n int) (packets [][]byte) {
	b.Helper()
	file, offset, err := binlogStatus(b.Context(), db.Pool())
	if err != nil {
		b.Fatal(err)
	}
	cfg := replication.BinlogSyncerConfig{
		ServerID: 777, Host: db.Server().Host(), Port: uint16(db.Server().Port()), User: db.Server().Config("").User,
		Password: db.Server().Config("").Passwd, Logger: slog.New(slog.DiscardHandler),
	}
	if db.Kind().IsMariaDB() {
		cfg.Flavor = gomysql.MariaDBFlavor
	}
	syncer := replication.NewBinlogSyncer(cfg)
	defer syncer.Close()
	stream, err := syncer.StartSync(gomysql.Position{Name: file, Pos: offset})
	if err != nil {
		b.Fatal(err)
	}
	db.Exec("CALL fill(" + strconv.Itoa(n) + ")")
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	for n > 0 {
		event, err := stream.GetEvent(ctx)
		if err != nil {
			b.Fatal(err)
		}
		packets = append(packets, event.RawData)
		if event.Header.EventType == replication.XID_EVENT {
			n--
		}
	}
	return packets
}

// BenchmarkDrain reads events from a server, one transaction each, as many as there are
// iterations: run it with -benchtime 20000x. It reports the CPU time of this process.
func BenchmarkDrain(b *testing.B) {
	for _, kind := range []testdb.Kind{testdb.MySQL97, testdb.MariaDB118} {
		b.Run(kind.String(), func(b *testing.B) {
			db := newOutbox(b, kind)
			keeper := &bank{}
			cfg := configOf(db)
			cfg.Keeper, cfg.SaveInterval, cfg.CheckInterval, cfg.ProbeInterval, cfg.ReadTimeout = keeper, time.Second, time.Second, 5*time.Second, time.Minute
			drain(b, cfg, 1, func() { db.Exec("CALL fill(1)") }) // learns where it is
			db.Exec("CALL fill(" + strconv.Itoa(b.N) + ")")
			b.ReportAllocs()
			b.ResetTimer()
			before := cpuTime(b)
			drain(b, cfg, b.N, func() {})
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// drain runs a reader until n rows came. once is called when it streams.
func drain(b *testing.B, cfg Config, n int, once func()) {
	b.Helper()
	src, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	out, ended := make(chan cdc.Transaction), make(chan error, 1)
	go func() { ended <- src.Run(ctx, out) }()
	testdb.WaitFor(b, "the stream", func() bool {
		mode := src.Status().Mode
		return mode == cdc.ModeStreaming || mode == cdc.ModeCatchingUp
	})
	once()
	for n > 0 {
		select {
		case tx := <-out:
			n -= len(tx.Records)
			if tx.Position != "" {
				src.Ack(tx.Position)
			}
		case err := <-ended:
			b.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; err != nil && !strings.Contains(err.Error(), "canceled") {
		b.Fatal(err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
