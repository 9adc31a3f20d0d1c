package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
)

// bench is what every experiment works with.
type bench struct {
	options
	report *report
	server *localserver.Postgres
	// made counts databases, for their names.
	made int
}

// settings make room for large runs, so that a checkpoint in the middle of one run and
// not of the other decides nothing. Durability is the server's default.
func settings() map[string]string {
	return map[string]string{
		"shared_buffers":           "1GB",
		"max_wal_size":             "16GB",
		"checkpoint_timeout":       "1h",
		"max_connections":          "200",
		"max_replication_slots":    "20",
		"max_wal_senders":          "20",
		"shared_preload_libraries": "pg_stat_statements",
		"pg_stat_statements.track": "top",
		"track_io_timing":          "on",
	}
}

// on runs an experiment on a server of its own.
func (b *bench) on(ctx context.Context, e experiment) (err error) {
	if e.ownServer {
		return e.run(ctx, b)
	}
	set := settings()
	if b.profile != "" {
		set["pg_stat_statements.track_planning"] = "on"
	}
	if b.plans {
		set["shared_preload_libraries"] += ",auto_explain"
		set["auto_explain.log_min_duration"] = "20ms"
		set["auto_explain.log_analyze"] = "on"
		set["auto_explain.log_buffers"] = "on"
		set["auto_explain.log_wal"] = "on"
		set["auto_explain.log_parameter_max_length"] = "0"
	}
	b.server, err = localserver.StartPostgres(ctx, localserver.PostgresOptions{Major: b.major, Settings: set})
	if err != nil {
		return err
	}
	defer func() {
		if b.plans {
			err = errors.Join(err, copyFile(b.server.LogFile(), filepath.Join(b.profile, e.name+".server.log")))
		}
		if closed := b.server.Close(); err == nil {
			err = closed
		}
	}()
	b.report.Versions["postgresql"] = b.server.Version()
	return e.run(ctx, b)
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// world is a fresh database of one run.
type world struct {
	b    *bench
	name string
	pool *pgxpool.Pool
	// pad is the size of the pad in the payload of an event.
	pad int
}

// fresh makes a database.
func (b *bench) fresh(ctx context.Context) (*world, error) {
	b.made++
	w := &world{b: b, name: "bench" + strconv.Itoa(b.made), pad: payloadPad}
	admin, err := pgx.Connect(ctx, b.server.DSN("postgres"))
	if err != nil {
		return nil, err
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+w.name); err != nil {
		return nil, err
	}
	if w.pool, err = pgxpool.New(ctx, w.dsn()); err != nil {
		return nil, err
	}
	_, err = w.pool.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
	return w, err
}

func (w *world) dsn() string { return w.b.server.DSN(w.name) }

// drop removes the database and its slots.
func (w *world) drop() error {
	w.pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin, err := pgx.Connect(ctx, w.b.server.DSN("postgres"))
	if err != nil {
		return err
	}
	defer admin.Close(ctx)
	_, err = admin.Exec(ctx, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = $1 AND active", w.name)
	for err == nil {
		if _, err = admin.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1", w.name); err == nil {
			break
		}
		if !pause(ctx, 50*time.Millisecond) {
			return err
		}
		err = nil // the reader has not left yet
	}
	if err != nil {
		return err
	}
	_, err = admin.Exec(ctx, "DROP DATABASE "+w.name+" WITH (FORCE)")
	return err
}

// settle gives both sides the same start: statistics as a running system has them, and a
// checkpoint that is not in the middle of what is measured.
func (w *world) settle(ctx context.Context) error {
	for _, sql := range []string{"VACUUM ANALYZE", "CHECKPOINT", "SELECT pg_stat_statements_reset()"} {
		if _, err := w.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// gone waits until a query says false.
func (w *world) gone(ctx context.Context, what, sql string) error {
	return waitGone(ctx, what, func() (open bool, err error) {
		err = w.pool.QueryRow(ctx, sql).Scan(&open)
		return open, err
	})
}

func waitGone(ctx context.Context, what string, ask func() (bool, error)) error {
	for {
		open, err := ask()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if !open {
			return nil
		}
		if !pause(ctx, 3*time.Millisecond) {
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// openPool makes connections, n at most.
func openPool(dsn string, n int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = n
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

// pause returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// cost is what a run used. It is read twice and subtracted.
type cost struct {
	wal                 int64
	statements, commits int64
	server, client      time.Duration
}

func (w *world) cost(ctx context.Context) (c cost, err error) {
	var pid int
	err = w.pool.QueryRow(ctx, `SELECT pg_backend_pid(), pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
		(SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())),
		(SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())`).Scan(&pid, &c.wal, &c.statements, &c.commits)
	if err != nil {
		return c, err
	}
	c.server = serverCPU(pid)
	c.client, err = clientCPU()
	return c, err
}

// clientCPU is what this process has used.
func clientCPU() (time.Duration, error) {
	var self syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	return time.Duration(self.Utime.Nano() + self.Stime.Nano()), err
}

func (c cost) since(before cost) cost {
	return cost{
		wal: c.wal - before.wal, statements: c.statements - before.statements, commits: c.commits - before.commits,
		server: c.server - before.server, client: c.client - before.client,
	}
}

// serverCPU adds up what the processes of the server have used, those that have ended
// included. pid is one of its backends. Linux only; elsewhere it is 0.
func serverCPU(pid int) time.Duration {
	postmaster := procStat(pid).parent
	if postmaster == 0 {
		return 0
	}
	var ticks int64
	list, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range list {
		n, _ := strconv.Atoi(filepath.Base(dir))
		s := procStat(n)
		if n == postmaster {
			ticks += s.own + s.children
		} else if s.parent == postmaster {
			ticks += s.own
		}
	}
	return time.Duration(ticks) * tick
}

// tick is the unit in which the kernel tells everybody about CPU time.
const tick = time.Second / 100

// processes lists what each process of the server has used, the busiest first.
func (w *world) processes(ctx context.Context) (string, error) {
	var pid int
	if err := w.pool.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return "", err
	}
	postmaster := procStat(pid).parent
	type process struct {
		ticks int64
		title string
	}
	var all []process
	list, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range list {
		n, _ := strconv.Atoi(filepath.Base(dir))
		if s := procStat(n); s.parent == postmaster && postmaster != 0 {
			title, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			all = append(all, process{s.own, strings.Trim(string(title), "\x00 ")})
		}
	}
	slices.SortFunc(all, func(a, b process) int { return cmp.Compare(b.ticks, a.ticks) })
	var out strings.Builder
	for _, p := range all {
		fmt.Fprintf(&out, "%6.2f s  %s\n", float64(p.ticks)/100, p.title)
	}
	return out.String(), nil
}

type stat struct {
	parent        int
	own, children int64
}

func procStat(pid int) (s stat) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s
	}
	// The program's name, in parentheses, may hold anything.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 15 {
		return s
	}
	at := func(i int) int64 { n, _ := strconv.ParseInt(fields[i], 10, 64); return n }
	return stat{parent: int(at(1)), own: at(11) + at(12), children: at(13) + at(14)}
}

// profiled runs fn under the CPU profiler when profiles are wanted, and writes down
// which statements the server was busy with.
func (w *world) profiled(ctx context.Context, name string, fn func() error) error {
	return w.b.profiled(name, fn, func(path string) error { return w.statements(ctx, path) })
}

func (b *bench) profiled(name string, fn func() error, statements func(path string) error) error {
	if b.profile == "" {
		return fn()
	}
	path := b.path(name, "")
	f, err := os.Create(path + ".pprof")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	err = fn()
	pprof.StopCPUProfile()
	if err = errors.Join(err, f.Sync()); err != nil {
		return err
	}
	return statements(path + ".sql.txt")
}

// path is that of a file about a run in the folder for profiles.
func (b *bench) path(name, suffix string) string {
	return filepath.Join(b.profile, strings.ReplaceAll(name, " ", "-")+suffix)
}

// looked writes down the statements so far, when profiles are wanted.
func (w *world) looked(ctx context.Context, name string) error {
	if w.b.profile == "" {
		return nil
	}
	return w.statements(ctx, w.b.path(name, ".sql.txt"))
}

// busy writes down, when profiles are wanted, which processes of the server were busy.
func (w *world) busy(ctx context.Context, name string) error {
	if w.b.profile == "" {
		return nil
	}
	list, err := w.processes(ctx)
	if err != nil {
		return err
	}
	return os.WriteFile(w.b.path(name, ".cpu.txt"), []byte(list), 0o600)
}

func (w *world) statements(ctx context.Context, path string) error {
	rows, err := w.pool.Query(ctx, `SELECT calls, rows, round(total_exec_time::numeric, 1)::text, round(mean_exec_time::numeric, 3)::text, round(total_plan_time::numeric, 1)::text,
		shared_blks_hit, shared_blks_read, wal_records, wal_bytes::text, left(regexp_replace(query, '\s+', ' ', 'g'), 160)
		FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
		ORDER BY total_exec_time DESC LIMIT 20`)
	if err != nil {
		return err
	}
	var out strings.Builder
	out.WriteString("calls\trows\ttotal_ms\tmean_ms\ttotal_plan_ms\thit\tread\twal_records\twal_bytes\tquery\n")
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		for i, v := range values {
			if i > 0 {
				out.WriteByte('\t')
			}
			fmt.Fprint(&out, v)
		}
		out.WriteByte('\n')
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(out.String()), 0o600)
}
