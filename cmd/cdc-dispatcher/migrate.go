package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

func (a *app) migrateCommand() *cobra.Command {
	var source string
	up := &cobra.Command{
		Use: "up", Short: "Create our tables, or bring them up to date", Args: noArgs,
		Long: `Create our tables, or bring them up to date, in the database of every source. It may be
run again, beside tables that exist, and beside a running dispatcher. An event table that is not
ours is neither created nor changed.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.eachMigrator(cmd.Context(), source, a.migrateUp) },
	}
	down := &cobra.Command{
		Use: "down", Short: "Take back the last migration", Args: noArgs,
		Long: `Take back the last migration. Events, deliveries and their two tables stay. Stop the
dispatcher before.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.eachMigrator(cmd.Context(), source, a.migrateDown)
		},
	}
	status := &cobra.Command{
		Use: "status", Short: "List the migrations and which are applied", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateStatus(cmd.Context(), source) },
	}
	cmd := newGroup("migrate", "Create our tables in the source databases", up, down, status, a.migratePrintCommand(&source))
	cmd.PersistentFlags().StringVar(&source, "source", "", "only this source")
	return cmd
}

// selected are the sources that a command works on: the named one, or all.
func (a *app) selected(cfg *config.Config, name string) ([]config.Source, error) {
	if name == "" {
		return cfg.Sources, nil
	}
	s, err := a.source(cfg, name)
	return []config.Source{s}, err
}

// eachSource runs fn for the named source, or for all in turn. One that fails does not keep it from
// the others, but a person who does not confirm does.
func (a *app) eachSource(name string, fn func(config.Source) error) error {
	cfg, err := a.load(a.configPath())
	if err != nil {
		return err
	}
	sources, err := a.selected(cfg, name)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range sources {
		err := fn(s)
		errs = append(errs, err)
		var f *failure
		if errors.As(err, &f) && f.code == codeConfirm {
			break
		}
	}
	return joined(errs)
}

// eachMigrator runs fn for the sources in turn.
func (a *app) eachMigrator(ctx context.Context, name string, fn func(context.Context, config.Source, *migrate.Migrator) error) error {
	return a.eachSource(name, func(s config.Source) error { return withMigrator(ctx, s, fn) })
}

func withMigrator(ctx context.Context, s config.Source, fn func(context.Context, config.Source, *migrate.Migrator) error) error {
	db, err := openDatabase(s)
	if err != nil {
		return err
	}
	m, err := db.migrator()
	if err == nil {
		err = fn(ctx, s, m)
	}
	if f := databaseFailure(s.Name, err); f != nil {
		err = f
	}
	return errors.Join(err, db.close())
}

func (a *app) migrateUp(ctx context.Context, s config.Source, m *migrate.Migrator) error {
	applied, err := m.Up(ctx)
	for _, step := range applied {
		a.say("source %s: applied %s", s.Name, step.Name)
	}
	if err == nil && len(applied) == 0 {
		a.say("source %s: nothing to do, schema %s is up to date", s.Name, s.Schema)
	}
	return err
}

func (a *app) migrateDown(ctx context.Context, s config.Source, m *migrate.Migrator) error {
	if err := a.confirm(fmt.Sprintf("Take back the last migration of schema %s in source %s?", s.Schema, s.Name), ""); err != nil {
		return err
	}
	undone, err := m.Down(ctx)
	switch {
	case err != nil:
		return err
	case undone == nil:
		a.say("source %s: nothing to take back", s.Name)
	default:
		a.say("source %s: took back %s", s.Name, undone.Name)
	}
	return nil
}

// step is one line of "migrate status".
type step struct {
	Source    string     `json:"source"`
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	Applied   bool       `json:"applied"`
	AppliedAt *time.Time `json:"applied_at,omitempty"`
}

func (a *app) migrateStatus(ctx context.Context, source string) error {
	steps := []step{}
	missing := 0
	err := a.eachMigrator(ctx, source, func(ctx context.Context, s config.Source, m *migrate.Migrator) error {
		list, err := m.Status(ctx)
		for _, x := range list {
			st := step{Source: s.Name, Version: x.Version, Name: x.Name, Applied: x.Applied}
			if x.Applied {
				st.AppliedAt = &x.AppliedAt
			} else {
				missing++
			}
			steps = append(steps, st)
		}
		return err
	})
	if err != nil && len(steps) == 0 {
		return err
	}
	if err := errors.Join(a.printSteps(steps), err); err != nil {
		return err
	}
	if missing > 0 {
		return &failure{exit: exitDatabase, code: codeNotMigrated, message: fmt.Sprintf("%d migrations are missing", missing), try: "cdc-dispatcher migrate up"}
	}
	return nil
}

func (a *app) printSteps(steps []step) error {
	if a.format == outputJSON {
		return a.json(steps)
	}
	rows := [][]string{{"SOURCE", "MIGRATION", "APPLIED"}}
	for _, s := range steps {
		when := "no"
		if s.AppliedAt != nil {
			when = s.AppliedAt.UTC().Format(time.RFC3339)
		}
		rows = append(rows, []string{s.Source, s.Name, when})
	}
	return a.printTable(rows)
}

func (a *app) migratePrintCommand(source *string) *cobra.Command {
	var (
		in      string
		dialect migrate.Dialect
	)
	cmd := &cobra.Command{
		Use: "print", Short: "Print the SQL of \"up\", without a connection", Args: noArgs,
		Long: `Print the SQL that "migrate up" would run on an empty database, for people whose
statements are run by somebody else. It needs no connection. Without a configuration file it
prints the tables of the preset eventlog. A connection string does not tell MariaDB from MySQL: give
--database, or write mariadb:// in it.`,
		RunE: func(*cobra.Command, []string) error {
			options, err := a.printOptions(*source, in)
			if err != nil {
				return err
			}
			for _, o := range options {
				if dialect != "" {
					o.Dialect = dialect
				}
				text, err := migrate.Print(o)
				if err != nil {
					return err
				}
				if _, err := fmt.Fprint(a.out, text); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&in, "schema", "", "print for this schema, without reading a configuration file")
	databaseFlag(cmd, (*config.Database)(&dialect), "postgres, mysql or mariadb (default: the source's own)")
	return cmd
}

// printOptions are those of the sources, or of no source at all.
func (a *app) printOptions(source, in string) ([]migrate.Options, error) {
	if in != "" {
		if source != "" {
			return nil, usage("give one of the two", "--schema and --source exclude each other")
		}
		return []migrate.Options{{Schema: in, Table: schema.Eventlog(in)}}, nil
	}
	if source == "" && a.configFile == "" && !a.configExists() {
		return []migrate.Options{{}}, nil
	}
	cfg, err := a.loadUnconnected(a.configPath())
	if err != nil {
		return nil, err
	}
	sources, err := a.selected(cfg, source)
	options := make([]migrate.Options, len(sources))
	for i, s := range sources {
		options[i] = migrations(s)
	}
	return options, err
}
