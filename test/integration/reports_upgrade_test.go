//go:build linux

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// T20: the server is upgraded by pg_upgrade under a running dispatcher, which makes it another one: a new system
// identifier, no slot, and a log that begins anew. What was committed and not read is found by the poller, and the
// new log is read on. (The upgrade is from 15 to 15, which is what pg_upgrade does the same way, because the
// other version's programs may be in a tree of their own.)
func TestT20_ServerUpgraded(t *testing.T) {
	t.Run("pg15", func(t *testing.T) {
		w := newWorld(t, testbed.OwnPostgres(t, 15, map[string]string{"fsync": "off"}))
		programs, local := strings.CutPrefix(w.postgres().Server.Origin(), "local binaries ")
		if !local {
			testdb.Note(t, "the server's programs are in a tree or a container of their own, so that pg_upgrade is not run")
			return
		}
		// The poller would find what the log lost in its ordinary way, after an hour.
		d := w.dispatch(neverPoll, steadyAndMoody(), hooks{config: func(c *pipeline.Config) { c.Poller.SweepAgain = 300 * time.Millisecond }})
		w.streaming()
		w.logBrings(d)
		end := w.write(workload.Config{Writers: 4, Rate: 100, Faults: true})
		w.letPass(50)
		const system = `SELECT system_identifier::text FROM pg_control_system()`
		before := w.text(system)
		if err := w.db.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.fault("")
		upgrade(t, programs, filepath.Join(filepath.Dir(w.postgres().Server.LogFile()), "data"))
		w.wrecked = append(w.wrecked, "pg_upgrade")
		if err := w.db.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "the upgraded server to answer", func() bool { return w.text(system) != "" })
		if w.text(system) == before {
			t.Fatal("the server is the same as before")
		}
		w.letPass(50)
		end()
		w.settle()
		w.streaming()
		w.logBrings(d)
		w.settle()
		w.progress("the gap to be closed", `SELECT count(*) FROM eventlog.gaps WHERE closed_date IS NULL`, 0)
		if n := w.number(`SELECT count(*) FROM eventlog.gaps WHERE reason = 'server_changed'`); n != 1 {
			t.Errorf("gaps: %v, want one server_changed", w.pairs(`SELECT reason, detail FROM eventlog.gaps`))
		}
		d.stop()
		w.verdict()
	})
}

// upgrade puts a data folder that pg_upgrade made of a stopped server's in its place.
func upgrade(t *testing.T, programs, data string) {
	t.Helper()
	info, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = filepath.Dir(data)
		cmd.SysProcAttr = testbed.DieWithParent()
		if os.Getuid() == 0 { // PostgreSQL refuses to run as root
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	fresh := data + ".new"
	run(filepath.Join(programs, "initdb"), "-D", fresh, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	run(filepath.Join(programs, "pg_upgrade"), "-b", programs, "-B", programs, "-d", data, "-D", fresh, "-U", "postgres", "-N", "-s", filepath.Dir(data))
	for _, file := range []string{"postgresql.conf", "postgresql.auto.conf", "pg_hba.conf"} {
		run("cp", "-p", filepath.Join(data, file), filepath.Join(fresh, file))
	}
	run("mv", data, data+".old")
	run("mv", fresh, data)
}
