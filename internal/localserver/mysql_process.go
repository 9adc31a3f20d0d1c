//go:build unix

package localserver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// mysqlProcess is a MySQL or MariaDB server that runs as a child of this process.
type mysqlProcess struct {
	daemon
	install  MySQLInstall
	settings map[string]string
}

// newMySQLProcess fills a data folder and starts the server on it.
func newMySQLProcess(ctx context.Context, install MySQLInstall, o MySQLOptions) (_ *mysqlProcess, err error) {
	acct, err := serverAccount(install.Root, "mysql")
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(mysqlPrefix, install.Root, o.Dir, acct)
	if err != nil {
		return nil, err
	}
	base := filepath.Dir(filepath.Dir(install.Server))
	p := &mysqlProcess{install: install, settings: map[string]string{}, daemon: daemon{
		account: acct,
		folder:  dir,
		env: []string{
			"PATH=" + filepath.Dir(install.Server) + ":" + filepath.Join(base, "bin") + ":/usr/bin:/bin:/usr/sbin:/sbin",
			"HOME=" + dir.inside(), "LC_ALL=C", "TZ=UTC",
		},
		// The server is one process, and needs no warning: what it must keep is on disk.
		orphaned: syscall.SIGKILL,
	}}
	p.configure(o.Settings)
	p.serve = func() *exec.Cmd { return p.command(install.Server, p.arguments()...) }
	p.ready = func(ctx context.Context, died <-chan struct{}) error {
		return waitReady(ctx, func() error { return tryMySQL(ctx, p.portNo) }, p.listening, died)
	}
	defer func() {
		if err != nil {
			err = p.withLog(err)
			if closeErr := p.close(); closeErr != nil {
				err = fmt.Errorf("%w (and: %w)", err, closeErr)
			}
		}
	}()
	if err := p.ownDir("tmp"); err != nil {
		return nil, err
	}
	if err := p.fill(ctx); err != nil {
		return nil, err
	}
	return p, p.startFirst(ctx)
}

// pidFile and the socket are in the data folder, which is where the server works:
// a relative path is never too long for the kernel.
const (
	pidFile    = "server.pid"
	socketFile = "mysql.sock"
)

// arguments are the server's, before its settings.
func (p *mysqlProcess) arguments() []string {
	port := strconv.Itoa(p.portNo)
	all := map[string]string{
		"bind_address":         "127.0.0.1",
		"port":                 port,
		"socket":               socketFile,
		"pid_file":             pidFile,
		"secure_file_priv":     p.folder.inside("data"),
		"log_bin":              "binlog",
		"server_id":            port,
		"character_set_server": "utf8mb4",
	}
	if p.install.Family == MariaDBServer {
		all["binlog_format"] = "ROW" // MIXED by default; MySQL knows ROW only, or has it by default
	} else {
		all["mysqlx"] = "OFF" // it would listen on a second port
		all["gtid_mode"] = "ON"
		all["enforce_gtid_consistency"] = "ON"
	}
	maps.Copy(all, p.settings)
	return append(p.baseArguments(), options(all)...)
}

// baseArguments are those that the first filling of the data folder has too.
// Option files of this machine are not read. Kernel AIO is off because all servers
// of a machine share a small number of its slots. The log files are small
// because they are written in full first.
func (p *mysqlProcess) baseArguments() []string {
	args := []string{
		"--no-defaults",
		"--datadir=" + p.folder.inside("data"),
		"--basedir=" + filepath.Dir(filepath.Dir(p.install.Server)),
		"--tmpdir=" + p.folder.inside("tmp"),
		"--innodb-use-native-aio=OFF",
	}
	if p.install.Family == MariaDBServer {
		return append(args, "--innodb-log-file-size=32M")
	}
	return append(args, "--innodb-redo-log-capacity=32M")
}

func options(settings map[string]string) []string {
	var args []string
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+key+"="+settings[key])
	}
	return args
}

// fixed are the settings that cannot change once the data folder is filled.
var fixed = [...]string{"lower_case_table_names", "innodb_page_size", "innodb_data_file_path", "innodb_undo_tablespaces"}

// initialise fills the empty data folder with the server's own program.
func (p *mysqlProcess) initialise(ctx context.Context) error {
	log, err := p.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the programs' own writes are what matters
	args := append(p.baseArguments(), options(p.fixedSettings())...)
	program := p.install.Server
	if p.install.Family == MariaDBServer {
		if program, err = mariadbInstaller(p.install); err != nil {
			return err
		}
		args = append(args, "--force", // also where the name of this host is unknown
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
	} else {
		args = append(args, "--initialize-insecure")
	}
	cmd := p.command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := runBound(ctx, cmd); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return nil
}

func (p *mysqlProcess) fixedSettings() map[string]string {
	out := map[string]string{}
	for _, key := range fixed {
		if value, ok := p.settings[key]; ok {
			out[key] = value
		}
	}
	return out
}

// configure keeps settings under their names as SQL writes them.
func (p *mysqlProcess) configure(settings map[string]string) {
	for key, value := range settings {
		p.settings[strings.ReplaceAll(key, "-", "_")] = value
	}
}

// listening reports whether our process says, in its pid file, that it is up. A
// file that a crash left holds another number.
func (p *mysqlProcess) listening() bool {
	text, err := os.ReadFile(p.folder.outside("data", pidFile))
	return err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(p.pid)
}

func (p *mysqlProcess) stop(ctx context.Context) error { return p.signal(ctx, syscall.SIGTERM) }

// close does not wait for a clean shutdown: the files go anyway.
func (p *mysqlProcess) close() error { return p.end(syscall.SIGKILL, func() {}) }
