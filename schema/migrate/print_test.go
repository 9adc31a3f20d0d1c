package migrate_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// TestPrintEqualsUp: what a database administrator runs by hand is what up runs.
func TestPrintEqualsUp(t *testing.T) {
	for _, o := range []migrate.Options{{}, {Schema: `Odd "name"; it's :odd \ too`}, {Schema: "d", Table: schema.Debezium("", "")}} {
		testdb.EachPostgres(t, func(t *testing.T, major int) {
			byUp, byPrint := testdb.Postgres(t, major), testdb.Postgres(t, major)
			up(t, migrator(t, byUp.Pool(), o))
			mustPsql(t, byPrint.DSN(), o)
			name := o.Schema
			if name == "" {
				name = schema.DefaultSchema
			}
			want := catalog(t, byUp.Pool(), name)
			if diff := cmp.Diff(want, catalog(t, byPrint.Pool(), name)); diff != "" {
				t.Error(diff)
			}
			m := migrator(t, byPrint.Pool(), o)
			if again := up(t, m); len(again) != 0 {
				t.Errorf("up after print applied %v", again)
			}
			mustPsql(t, byPrint.DSN(), o) // a second time changes nothing
			last := down(t, m)
			mustPsql(t, byPrint.DSN(), o) // an older installation gets what it lacks
			if again := up(t, m); len(again) != 0 {
				t.Errorf("up after %s and print applied %v", last.Name, again)
			}
		})
	}
}

// TestPrintStopsAtAnError: a step that failed does not count as applied, nor does one after it, and the script can
// be run again.
func TestPrintStopsAtAnError(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, c := range []struct {
			name, ddl, version string
			goOn               func(*testing.T, *testdb.DB)
		}{
			{"a table of somebody else's in the way", "CREATE SCHEMA eventlog; CREATE TABLE eventlog.handlers (id int)", "1", func(t *testing.T, db *testdb.DB) {
				db.Exec("DROP TABLE eventlog.handlers")
				mustPsql(t, db.DSN(), migrate.Options{})
			}},
			{"a partitioned event table", partitionedDDL(), "2", func(t *testing.T, db *testdb.DB) {
				up(t, migrator(t, db.Pool(), migrate.Options{}))
			}},
		} {
			t.Run(c.name, func(t *testing.T) {
				db := testdb.Postgres(t, major)
				db.Exec(c.ddl)
				if out, err := psql(t, db.DSN(), migrate.Options{}); err == nil {
					t.Errorf("psql says that all went well: %s", out)
				}
				const version = `SELECT max(version)::text FROM eventlog.cdc_dispatcher_migrations`
				if got := column(t, db.Pool(), version); got[0] != c.version {
					t.Errorf("version %s, want %s", got[0], c.version)
				}
				c.goOn(t, db)
				if got := invalid(t, db); len(got) != 0 || !strings.Contains(strings.Join(catalog(t, db.Pool(), "eventlog"), "\n"), "lost_claims") {
					t.Errorf("not complete; invalid: %v", got)
				}
			})
		}
	})
}

// TestPrintWithoutTheRightToCreateSchemas: an administrator has created the schema.
func TestPrintWithoutTheRightToCreateSchemas(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		mustPsql(t, ownerOfSchema(db), migrate.Options{})
	})
}

func mustPsql(t *testing.T, dsn string, o migrate.Options) {
	t.Helper()
	if out, err := psql(t, dsn, o); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// psql runs what is printed as an administrator would, and returns what psql says.
func psql(t *testing.T, dsn string, o migrate.Options) (string, error) {
	t.Helper()
	script, err := migrate.Print(o)
	if err != nil {
		t.Fatal(err)
	}
	program := findPsql(t)
	cmd := exec.CommandContext(t.Context(), program[0], append(program[1:], "-X", "-q", "-d", dsn)...)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// findPsql is psql as it comes with a server, as the beginning of a command.
func findPsql(t *testing.T) []string {
	t.Helper()
	for _, in := range localserver.FindPostgres(context.WithoutCancel(t.Context())) {
		path := filepath.Join(in.BinDir, "psql")
		if _, err := os.Stat(filepath.Join(in.Root, path)); in.BinDir == "" || err != nil {
			continue
		}
		if in.Root != "" {
			return []string{"chroot", in.Root, path}
		}
		return []string{path}
	}
	if path, err := exec.LookPath("psql"); err == nil {
		return []string{path}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("no psql on this machine, and CI is set")
	}
	t.Skip("no psql on this machine")
	return nil
}
