package localserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// container is a server in a container. It takes any image that behaves like
// the official postgres one: a data folder in $PGDATA, arguments that begin
// with a dash passed to the server, POSTGRES_HOST_AUTH_METHOD and
// POSTGRES_INITDB_ARGS. Settings are given on its command line, so ALTER SYSTEM
// cannot change them.
type container struct {
	engine engine
	name   string
	dir    string   // holds the log and the owner's lock
	lock   *os.File // nil where files cannot be locked
	portNo int
	follow func() // ends the copying of the log; nil when none runs
}

// ownerLabel names the folder of the owner, with the host it is on, so that a
// later process can remove containers whose owner died.
const ownerLabel = "cdc-dispatcher.owner"

// newContainer starts a container from the image and fills in the version.
func newContainer(ctx context.Context, install *Install, o PostgresOptions) (_ *container, err error) {
	eng := findEngine(ctx)
	if eng == "" {
		return nil, errors.New("no container engine answers")
	}
	sweepContainers(ctx, eng)
	dir, err := os.MkdirTemp("", "cdc-dispatcher-container-")
	if err != nil {
		return nil, err
	}
	c := &container{engine: eng, name: filepath.Base(dir), dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(c.withLog(err), c.close())
		}
	}()
	if c.lock, err = claim(dir); err != nil {
		return nil, err
	}
	if c.portNo, err = FreePort(); err != nil {
		return nil, err
	}
	if _, err = eng.run(ctx, c.runArguments(install.Image, o.Settings)...); err != nil {
		return nil, err
	}
	if err = c.await(ctx); err != nil {
		return nil, err
	}
	if install.Major, install.Version, err = askVersion(ctx, c.portNo); err != nil {
		return nil, err
	}
	if o.Major != 0 && o.Major != install.Major {
		return nil, fmt.Errorf("the image holds PostgreSQL %d, wanted %d", install.Major, o.Major)
	}
	if o.HBA != "" {
		if _, err = c.writeFile("pg_hba.conf", []byte(o.HBA+"\n")); err != nil {
			return nil, err
		}
		if err = c.signal(ctx, "HUP"); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *container) runArguments(image string, settings map[string]string) []string {
	args := []string{
		"run", "--detach", "--name", c.name,
		"--label", ownerLabel + "=" + ownerValue(c.dir),
		"--publish", "127.0.0.1:" + strconv.Itoa(c.portNo) + ":5432",
		"--env", "POSTGRES_HOST_AUTH_METHOD=trust",
		"--env", "POSTGRES_INITDB_ARGS=--encoding=UTF8 --locale=C",
		image, "-c", "wal_level=logical",
	}
	for key, value := range settings {
		args = append(args, "-c", key+"="+value)
	}
	return args
}

// await waits until the server accepts, and follows the log meanwhile and after.
func (c *container) await(ctx context.Context) error {
	died, err := c.followLog()
	if err != nil {
		return err
	}
	return waitReady(ctx, func() error { return tryConnect(ctx, c.portNo) }, func() bool { return true }, died)
}

// followLog copies the container's output into the log file until the
// container ends, which closes the returned channel.
func (c *container) followLog() (<-chan struct{}, error) {
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, string(c.engine), "logs", "--follow", c.name)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, errors.Join(err, log.Close())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the log is a convenience; what matters is read from the engine
		_ = log.Close()
	}()
	c.follow = func() { cancel(); <-ended }
	return ended, nil
}

func (c *container) unfollow() {
	if c.follow != nil {
		c.follow()
		c.follow = nil
	}
}

func (c *container) start(ctx context.Context) error {
	c.unfollow()
	if _, err := c.engine.run(ctx, "start", c.name); err != nil {
		return err
	}
	return c.withLog(c.await(ctx))
}

func (c *container) stop(ctx context.Context, mode StopMode) error {
	if running, err := c.running(ctx); err != nil || !running {
		return err
	}
	name := map[StopMode]string{StopFast: "INT", StopImmediate: "QUIT", StopSmart: "TERM"}[mode]
	if err := c.signal(ctx, name); err != nil {
		return err
	}
	if _, err := c.engine.run(ctx, "wait", c.name); err != nil {
		return fmt.Errorf("the server is still shutting down: %w", err)
	}
	return nil
}

func (c *container) running(ctx context.Context) (bool, error) {
	out, err := c.engine.run(ctx, "inspect", "--format", "{{.State.Running}}", c.name)
	return out == "true", err
}

func (c *container) signal(ctx context.Context, name string) error {
	_, err := c.engine.run(ctx, "kill", "--signal", name, c.name)
	return err
}

func (c *container) kill() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if running, err := c.running(ctx); err != nil || !running {
		return err
	}
	if err := c.signal(ctx, "KILL"); err != nil {
		return err
	}
	_, err := c.engine.run(ctx, "wait", c.name)
	return err
}

func (c *container) freeze() error { return c.simple("pause") }
func (c *container) thaw() error   { return c.simple("unpause") }

func (c *container) simple(verb string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := c.engine.run(ctx, verb, c.name)
	return err
}

func (c *container) writeFile(name string, content []byte) (string, error) {
	if name != filepath.Base(name) {
		return "", fmt.Errorf("%q is not a plain file name", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return c.engine.runWithInput(ctx, content, "exec", "--interactive", "--user", "postgres", c.name,
		"sh", "-c", `umask 077 && cat > "$PGDATA/$1" && echo "$PGDATA/$1"`, "sh", name)
}

func (c *container) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := c.engine.run(ctx, "rm", "--force", "--volumes", c.name)
	if err != nil && strings.Contains(err.Error(), "No such container") {
		err = nil // it never came to be; the engine gives no other sign of it
	}
	c.unfollow()
	if c.lock != nil {
		err = errors.Join(err, c.lock.Close())
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

func (c *container) port() int       { return c.portNo }
func (c *container) logFile() string { return filepath.Join(c.dir, "server.log") }

func (c *container) withLog(err error) error { return withLog(err, c.logFile()) }

func ownerValue(dir string) string {
	host, _ := os.Hostname() // an unknown host only means that nobody sweeps
	return host + ":" + dir
}

// sweepContainers removes containers of owners on this host that died without
// Close. Best effort, like sweep.
func sweepContainers(ctx context.Context, eng engine) {
	list, err := eng.run(ctx, "ps", "--all", "--filter", "label="+ownerLabel,
		"--format", `{{.Names}} {{.Label "`+ownerLabel+`"}}`)
	if err != nil {
		return
	}
	for line := range strings.Lines(list) {
		name, owner, _ := strings.Cut(strings.TrimSpace(line), " ")
		host, dir, _ := strings.Cut(owner, ":")
		if own, _ := os.Hostname(); host != own || host == "" {
			continue
		}
		if lock := claimAbandoned(dir); lock != nil {
			_, _ = eng.run(ctx, "rm", "--force", "--volumes", name)
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

// askVersion asks a server which version it is.
func askVersion(ctx context.Context, port int) (major int, version string, err error) {
	conn, err := pgx.Connect(ctx, probeDSN(port))
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is left in it
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int / 10000,
		split_part(current_setting('server_version'), ' ', 1)`).Scan(&major, &version)
	return major, version, err
}
