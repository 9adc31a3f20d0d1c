package postgres

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestB23_InterleavedLargeTransactions(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		rows := 20000
		if soak() {
			rows = 300000
		}
		// Both must spill to disk on the server.
		db.Exec(fmt.Sprintf("ALTER DATABASE %q SET logical_decoding_work_mem = '64kB'", db.Name()))
		r := start(t, testConfig(db))
		r.WaitMode(cdc.ModeStreaming)
		good, bad := connect(t, db.DSN()), connect(t, db.DSN())
		run(t, good, "BEGIN")
		run(t, bad, "BEGIN")
		const steps = 10
		for i := range steps {
			for conn, offset := range map[*pgx.Conn]int{good: 0, bad: 10_000_000} {
				from := offset + i*rows/steps
				if _, err := conn.Exec(t.Context(), insertEvents, from, from+rows/steps); err != nil {
					t.Fatal(err)
				}
			}
		}
		run(t, bad, "ROLLBACK")
		db.Exec(insertEvents, -1, 0) // a sign that the stream has passed the rollback
		r.WaitFor(1)
		if n := r.Distinct(); n != 1 {
			t.Fatalf("%d rows arrived before their commit", n-1)
		}
		run(t, good, "COMMIT")
		r.WaitFor(rows + 1)
		db.Exec(insertEvents, -2, -1)
		r.WaitFor(rows + 2)
		if got := len(r.Arrived()); got != rows+2 {
			t.Errorf("%d rows arrived, want %d", got, rows+2)
		}
		if r.Count("10000000") != 0 {
			t.Error("a row of the transaction that was rolled back arrived")
		}
	})
}

func TestB24_MemoryDoesNotGrowWithTheTransaction(t *testing.T) {
	// Not in parallel with others: it looks at this process's memory.
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		rows := 60000
		if soak() {
			rows = 2000000
		}
		db := testdb.Postgres(t, major)
		db.Exec(eventsTable)
		src, err := New(testConfig(db))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		out := make(chan cdc.Transaction)
		done := make(chan error, 1)
		go func() { done <- src.Run(ctx, out) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		testdb.WaitFor(t, "streaming", func() bool { return src.Status().Mode == cdc.ModeStreaming })
		const insert = "INSERT INTO events (id, payload) SELECT i, repeat(md5(i::text), 32) FROM generate_series(1, $1::int) i"
		if _, err := connect(t, db.DSN()).Exec(t.Context(), insert, rows); err != nil {
			t.Fatal(err)
		}
		before := heap()
		var most, bytes uint64
		got, parts := 0, 0
		for got < rows {
			tx := <-out
			got += len(tx.Records)
			for _, r := range tx.Records {
				v, _ := r.Value("payload")
				bytes += uint64(len(v.Data))
			}
			if parts++; parts%10 == 0 {
				runtime.GC()
				most = max(most, heap())
			}
			if tx.Partial != (got < rows) {
				t.Fatalf("part %d at row %d: partial %v", parts, got, tx.Partial)
			}
			if tx.Partial != (tx.Position == "") {
				t.Fatalf("part %d: partial %v, position %q", parts, tx.Partial, tx.Position)
			}
		}
		grown := int64(most) - int64(before)
		t.Logf("%d MB came in %d parts; the heap grew by %d kB", bytes>>20, parts, grown>>10)
		if limit := int64(bytes / 4); grown > limit {
			t.Errorf("the heap grew by %d bytes for a transaction of %d", grown, bytes)
		}
	})
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestB38_TwoStreamsInOneProcess(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		other := testdb.Postgres(t, db.Server().Major())
		other.Exec(eventsTable)
		one, two := start(t, testConfig(db)), start(t, testConfig(other))
		one.WaitMode(cdc.ModeStreaming)
		two.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 5000)
		other.Exec(insertEvents, 100000, 105000)
		one.WaitFor(5000)
		two.WaitFor(5000)
		if one.Count("100000") != 0 || two.Count("0") != 0 {
			t.Error("the streams mixed")
		}
	})
}
