package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// initFlags are the answers that init does not have to find out.
type initFlags struct {
	dsn, preset, table string
	database           config.Database
	force              bool
}

func (a *app) initCommand() *cobra.Command {
	var f initFlags
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a configuration file, after a look at the database",
		Long: `Write a commented configuration file of about 30 lines. The database is the one of --dsn or
DATABASE_URL; when it answers, init looks for an event table, also one in Debezium's outbox layout,
and says what the server lacks. No password is written.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.init(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.dsn, "dsn", "", "the database (default $DATABASE_URL)")
	cmd.Flags().StringVar(&f.preset, "preset", "", "layout of the event table: eventlog, debezium or custom (default: what is found)")
	cmd.Flags().StringVar(&f.table, "table", "", "the event table, schema.table (default: what is found)")
	databaseFlag(cmd, &f.database, "postgres, mysql or mariadb (default: what the connection string says, else postgres)")
	cmd.Flags().BoolVar(&f.force, "force", false, "overwrite the file")
	return cmd
}

// plan is what init decided to write.
type plan struct {
	File   string `json:"file"`
	Source string `json:"source"`
	// Database is postgres, mysql or mariadb.
	Database config.Database `json:"database"`
	// DSN is written as it is here: a reference, or a connection string without a password.
	DSN    string `json:"dsn"`
	Preset string `json:"preset"`
	Table  string `json:"table,omitempty"`
	// DateColumn is the time column of a table that has no other bound.
	DateColumn string `json:"date_column,omitempty"`
	Mode       string `json:"mode"`
	// Found says what was seen in the database.
	Found []string `json:"found"`
}

func (a *app) init(ctx context.Context, f initFlags) error {
	path := a.configPath()
	if _, err := os.Stat(path); err == nil && !f.force {
		return failed(codeExists, "name another file with --config, or overwrite it with --force", "%s is already there", path)
	}
	p, dsn, err := a.plan(path, f)
	if err != nil {
		return err
	}
	if dsn != "" {
		a.look(ctx, dsn, f, &p)
	}
	text := p.yaml()
	// What is written must be a configuration that validates, whatever the variable holds.
	env := config.Environment{Lookup: func(string) (string, bool) { return example(p.Database), true }}
	if _, err := config.Parse(path, []byte(text), env); err != nil {
		return err
	}
	if err := write(path, text, f.force); err != nil {
		return failed(codeFile, "check the folder's permissions, or name another file with --config", "%s cannot be written: %s", path, innermost(err))
	}
	if a.format == outputJSON {
		return a.json(p)
	}
	for _, line := range p.Found {
		a.say("- %s", line)
	}
	a.say("wrote %s", path)
	if p.DSN == reference {
		if _, set := a.lookup("DATABASE_URL"); !set {
			a.say("set DATABASE_URL before you go on: export DATABASE_URL=%s", example(p.Database))
		}
	}
	a.say("next: cdc-dispatcher migrate up, cdc-dispatcher doctor, cdc-dispatcher run")
	return nil
}

// reference is how the connection string gets into the file when it has a password.
const reference = "${DATABASE_URL}"

// plan decides what can be decided without the database.
func (a *app) plan(path string, f initFlags) (p plan, dsn string, err error) {
	p = plan{File: path, Source: "main", DSN: reference, Preset: f.preset, Table: f.table, Mode: string(config.ModeAuto), Found: []string{}}
	if dsn = f.dsn; dsn == "" {
		dsn, _ = a.lookup("DATABASE_URL")
	}
	switch p.Preset {
	case "", schema.PresetEventlog, schema.PresetDebezium, schema.PresetCustom:
	default:
		return p, "", usage("use eventlog, debezium or custom", "there is no preset %q", p.Preset)
	}
	if p.Database = f.database; p.Database == "" {
		p.Database = config.DatabasePostgres
	}
	if dsn == "" {
		p.choose()
		return p, "", nil
	}
	kind, database, err := readDSN(dsn)
	switch {
	case err != nil:
		return p, "", err
	case f.database != "" && f.database.IsMySQL() != kind.IsMySQL():
		return p, "", usage("leave --database out, or give another --dsn", "--database is %s, and the connection string leads to %s", f.database, kind)
	case f.database == "":
		p.Database = kind
	}
	if name := sourceName(database); name != "" {
		p.Source = name
	}
	if f.dsn != "" && config.WithoutPassword(f.dsn) {
		p.DSN = f.dsn
	}
	return p, dsn, nil
}

// readDSN tells the kind of a connection string and the database that it names.
func readDSN(dsn string) (kind config.Database, database string, err error) {
	unreadable := usage("write "+example(config.DatabasePostgres)+" or "+example(config.DatabaseMySQL)+"; percent-encode special characters of the password",
		"the connection string cannot be read")
	kind, ok := config.DatabaseOf(dsn)
	switch {
	case !ok:
		return "", "", unreadable
	case kind.IsMySQL():
		cfg, err := config.Source{DSN: dsn}.MySQLConfig()
		if err != nil {
			return "", "", unreadable
		}
		return kind, cfg.DBName, nil
	}
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return "", "", unreadable
	}
	return kind, cfg.Database, nil
}

// example is what a connection string looks like.
func example(kind config.Database) string {
	if kind.IsMySQL() {
		return kind.String() + "://user:password@host:3306/database"
	}
	return "postgres://user:password@host:5432/database"
}

// sourceName makes the name of a source out of a database's.
func sourceName(database string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, database[:min(len(database), 40)]), "-")
}

// choose fills in what neither a flag nor the database decided.
func (p *plan) choose() {
	if p.Preset == "" {
		p.Preset = schema.PresetEventlog
		if p.Table != "" {
			p.Preset = schema.PresetCustom
		}
	}
	if p.Table == "" && p.Preset != schema.PresetEventlog {
		p.Table = "public.outbox"
		if p.Database.IsMySQL() {
			p.Table = "shop.outbox"
		}
	}
}

// look lets the database decide the rest. When it does not answer, init goes on without.
func (a *app) look(ctx context.Context, dsn string, f initFlags, p *plan) {
	defer p.choose()
	seen, err := inspect(ctx, p.Database, dsn)
	if err != nil {
		failure := classify(err)
		p.Found = append(p.Found, "the database was not looked at: "+oneLine(failure.message))
		return
	}
	p.Found = append(p.Found, seen.describe()...)
	if seen.product.IsMySQL() {
		p.Database = seen.product
	}
	if f.preset == "" && f.table == "" {
		switch {
		case seen.hasEvents:
			p.Preset = schema.PresetEventlog
		case len(seen.outboxes) == 1:
			p.Preset, p.Table = schema.PresetDebezium, seen.outboxes[0].name
		case len(seen.outboxes) > 1:
			p.Found = append(p.Found, "several tables look like an outbox; choose one with --table")
		}
	}
	if f.preset == "" && f.table != "" && seen.outbox(f.table) != nil {
		p.Preset = schema.PresetDebezium
	}
	if f.preset == schema.PresetDebezium && f.table == "" && len(seen.outboxes) == 1 {
		p.Table = seen.outboxes[0].name
	}
	if o := seen.outbox(p.Table); o != nil && p.Preset == schema.PresetDebezium {
		p.DateColumn = o.date
	}
}

// write creates the file, and does not touch one that appeared meanwhile.
func write(path, text string, force bool) error {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	if dir := filepath.Dir(path); dir != "." {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("folder %s does not exist", dir)
		}
	}
	f, err := os.OpenFile(path, flags, 0o644) //nolint:gosec // it holds no secret
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
