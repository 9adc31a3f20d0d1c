//go:build unix

// Command mysqlimage is the entry point of the images of MySQL and MariaDB that the
// tests in the folder above make. It is the part of the official images that the compose
// file relies on: data made from MYSQL_ or MARIADB_ USER, PASSWORD, ROOT_PASSWORD and
// DATABASE, files of /docker-entrypoint-initdb.d run once by a server that only the socket
// reaches, and arguments passed on to the server. Under the name mysqladmin or
// mariadb-admin it is the `ping` of the health check.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	dataDir   = "/var/lib/mysql"
	socket    = dataDir + "/mysql.sock"
	scriptDir = "/docker-entrypoint-initdb.d"
	nobody    = 65534 // the trees have no user of the server's own
)

func main() {
	do := serve
	if strings.HasSuffix(os.Args[0], "admin") {
		do = ping
	}
	if err := do(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, filepath.Base(os.Args[0])+":", err)
		os.Exit(1)
	}
}

// image is what differs between the two.
type image struct {
	program string
	prefix  string   // of the variables
	install []string // fills the data folder; base follows
	base    []string // arguments of the install program and of the server
	always  []string // arguments of the server
}

func thisImage() image {
	base := []string{"--basedir=/usr", "--datadir=" + dataDir, "--innodb-use-native-aio=OFF"}
	always := []string{"--socket=" + socket, "--pid-file=" + dataDir + "/server.pid", "--secure-file-priv=" + dataDir, "--skip-name-resolve"}
	if _, err := os.Stat("/usr/sbin/mariadbd"); err == nil {
		return image{
			program: "/usr/sbin/mariadbd", prefix: "MARIADB_",
			install: []string{"/usr/bin/mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal",
				"--skip-test-db", "--skip-name-resolve", "--force"},
			base: append(base, "--innodb-log-file-size=32M"), always: always,
		}
	}
	return image{
		program: "/usr/sbin/mysqld", prefix: "MYSQL_",
		install: []string{"/usr/sbin/mysqld", "--no-defaults", "--initialize-insecure"},
		base:    append(base, "--innodb-redo-log-capacity=32M"), always: append(always, "--mysqlx=OFF"),
	}
}

func (i image) variable(name string) string { return os.Getenv(i.prefix + name) }

// serve becomes the server.
func serve(args []string) error {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return fmt.Errorf("want arguments of the server only, got %s", args[0])
	}
	if os.Getuid() == 0 {
		if err := leaveRoot(); err != nil {
			return err
		}
	}
	img := thisImage()
	argv := slices.Concat([]string{img.program, "--no-defaults"}, img.base, img.always, args)
	if _, err := os.Stat(dataDir + "/mysql"); errors.Is(err, os.ErrNotExist) {
		if err := img.prepare(argv); err != nil {
			return fmt.Errorf("prepare the data: %w", err)
		}
	}
	return syscall.Exec(img.program, argv, os.Environ())
}

func leaveRoot() error {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return err
	}
	if err := os.Chown(dataDir, nobody, nobody); err != nil {
		return err
	}
	if err := syscall.Setgroups([]int{nobody}); err != nil {
		return err
	}
	return errors.Join(syscall.Setgid(nobody), syscall.Setuid(nobody))
}

// prepare fills the data folder, and lets a server without TCP make users and databases
// and run the files.
func (i image) prepare(argv []string) error {
	if i.variable("ROOT_PASSWORD") == "" {
		return errors.New(i.prefix + "ROOT_PASSWORD is not set")
	}
	fill := slices.Concat(i.install, i.base)
	if err := command(fill).Run(); err != nil {
		return fmt.Errorf("%s: %w", fill[0], err)
	}
	server := command(append(slices.Clone(argv), "--skip-networking"))
	if err := server.Start(); err != nil {
		return err
	}
	var errServer error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		errServer = server.Wait()
	}()
	err := i.furnish(ended)
	errSignal := server.Process.Signal(syscall.SIGTERM)
	<-ended
	return errors.Join(err, errSignal, errServer)
}

func command(argv []string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}

// furnish speaks to the server by its socket, as root without a password until the end.
func (i image) furnish(ended <-chan struct{}) error {
	files, err := filepath.Glob(scriptDir + "/*.sql")
	if err != nil {
		return err
	}
	statements := []string{
		"DROP USER IF EXISTS ''@localhost",
		"CREATE USER root@'%' IDENTIFIED BY " + text(i.variable("ROOT_PASSWORD")),
		"GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION",
	}
	database, user := i.variable("DATABASE"), i.variable("USER")
	if database != "" {
		statements = append(statements, "CREATE DATABASE IF NOT EXISTS "+name(database), "USE "+name(database))
	}
	if user != "" {
		statements = append(statements, "CREATE USER "+text(user)+"@'%' IDENTIFIED BY "+text(i.variable("PASSWORD")))
	}
	if user != "" && database != "" {
		statements = append(statements, "GRANT ALL ON "+name(database)+".* TO "+text(user)+"@'%'")
	}
	for _, file := range files {
		script, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		statements = append(statements, string(script))
	}
	statements = append(statements, "ALTER USER root@localhost IDENTIFIED BY "+text(i.variable("ROOT_PASSWORD")))

	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.MultiStatements = "root", "unix", socket, true
	conn, err := connect(cfg, ended)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the server ends next
	for _, statement := range statements {
		if _, err := conn.ExecContext(context.Background(), statement); err != nil {
			return err
		}
	}
	return nil
}

// connect waits until the server takes a session.
func connect(cfg *mysql.Config, ended <-chan struct{}) (*sql.Conn, error) {
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	for range 600 {
		var conn *sql.Conn
		if conn, err = pool.Conn(context.Background()); err == nil {
			return conn, nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ended:
			return nil, errors.New("the server ended by itself")
		}
	}
	return nil, err
}

func text(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}

func name(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }

// ping is content, as the real one, with a server that refuses the password: it answers.
func ping(args []string) error {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.Logger, cfg.Timeout = "unix", socket, &mysql.NopLogger{}, 3*time.Second
	for i, arg := range args {
		switch {
		case arg == "-h" && i+1 < len(args):
			cfg.Net, cfg.Addr = "tcp", args[i+1]+":3306"
		case strings.HasPrefix(arg, "-u"):
			cfg.User = arg[2:]
		case strings.HasPrefix(arg, "-p"):
			cfg.Passwd = arg[2:]
		}
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	pool := sql.OpenDB(connector)
	defer func() { _ = pool.Close() }() // the program ends
	err = pool.PingContext(context.Background())
	if _, answered := errors.AsType[*mysql.MySQLError](err); answered {
		return nil
	}
	return err
}
