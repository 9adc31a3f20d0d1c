package containers

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// The compose file as it is, with other names for the images.
func TestComposeDeliversWhatWasCommitted(t *testing.T) {
	tool := composeTool()
	if !engineAnswers() || tool == nil {
		testdb.Note(t, "no compose program answers: docker-compose.yml was not run, its configuration was, with processes beside PostgreSQL")
		return
	}
	for _, s := range stacks {
		t.Run(s.name, func(t *testing.T) { proveDelivery(t, compose(t, tool, s)) })
	}
}

// stack is one database of the compose file and what belongs to it.
type stack struct {
	name       string   // the database's service
	up         []string // arguments of up
	profile    string   // empty: what runs without one
	dispatcher string   // its service
	image      func(*testing.T) string
	port       string // the variable with the database's published port
	dispatch   string // the same for the dispatcher's
	open       func(t *testing.T, port string) database
}

var stacks = []stack{{
	name: "postgres", dispatcher: "dispatcher", image: postgresImage, port: "POSTGRES_PORT", dispatch: "DISPATCHER_PORT",
	open: func(t *testing.T, port string) database {
		return openPostgres(t, "postgres://app:app@127.0.0.1:"+port+"/shop?sslmode=disable")
	},
}, {
	name: "mysql", profile: "mysql", dispatcher: "dispatcher-mysql", up: []string{"dispatcher-mysql"},
	image: func(t *testing.T) string { return mysqlImage(t, localserver.MySQLServer) },
	port:  "MYSQL_PORT", dispatch: "DISPATCHER_MYSQL_PORT", open: openMySQL,
}, {
	name: "mariadb", profile: "mariadb", dispatcher: "dispatcher-mariadb", up: []string{"dispatcher-mariadb"},
	image: func(t *testing.T) string { return mysqlImage(t, localserver.MariaDBServer) },
	port:  "MARIADB_PORT", dispatch: "DISPATCHER_MARIADB_PORT", open: openMySQL,
}}

// composeTool is the compose program of this machine, nil when there is none.
func composeTool() []string {
	for _, tool := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.Command(tool[0], append(tool[1:], "version")...).Run() == nil {
			return tool
		}
	}
	return nil
}

// compose is the world of the compose file.
func compose(t *testing.T, tool []string, s stack) world {
	t.Helper()
	ourImages(t)
	image, port, receiverPort := s.image(t), freePort(t), freePort(t)
	env := []string{
		"CDC_DISPATCHER_" + strings.ToUpper(s.name) + "_IMAGE=" + image,
		"CDC_DISPATCHER_IMAGE=" + ourImage,
		"CDC_DISPATCHER_RECEIVER_IMAGE=" + receiverImage,
		s.port + "=" + port, "RECEIVER_PORT=" + receiverPort, s.dispatch + "=" + freePort(t),
		"RECEIVER_SECRET=" + secret,
	}
	base := append(slices.Clone(tool[1:]), "--project-name", fmt.Sprintf("cdcdispatchertest%d%s", os.Getpid(), s.profile))
	if s.profile != "" {
		base = append(base, "--profile", s.profile)
	}
	do := func(args ...string) string {
		t.Helper()
		return command(t, env, tool[0], slices.Concat(base, args)...)
	}
	t.Cleanup(func() {
		run := func(args ...string) (string, error) {
			cmd := exec.Command(tool[0], slices.Concat(base, args)...)
			cmd.Dir, cmd.Env = root(), append(os.Environ(), env...)
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if t.Failed() {
			logs, _ := run("logs", "--no-color", "--tail", "40")
			t.Log(logs)
		}
		if out, err := run("down", "--volumes", "--timeout", "0"); err != nil {
			t.Errorf("compose down: %v\n%s", err, out)
		}
	})
	do(slices.Concat([]string{"up", "--detach", "--no-build"}, s.up)...)
	testdb.WaitFor(t, "the image's health check of the dispatcher", func() bool {
		id := do("ps", "--quiet", s.dispatcher)
		return id != "" && docker(t, "inspect", "--format", "{{.State.Health.Status}}", id) == "healthy"
	})
	w := world{
		db: s.open(t, port), receiver: "http://127.0.0.1:" + receiverPort,
		kill:  func() { do("kill", "-s", "SIGKILL", s.dispatcher) },
		start: func() { do("start", s.dispatcher) },
	}
	report(t, w.db, strings.Join(tool, " "), image)
	w.awaitReceiver(t)
	return w
}
