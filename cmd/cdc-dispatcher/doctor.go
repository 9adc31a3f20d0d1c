package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the databases, with the statement that mends each finding",
		Long: `Check the configuration and the database of every source, in the order of what depends on
what. Nothing is changed: the statements that mend a finding are printed. Exit code 5 when a check
failed, 6 when there is something to look at.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(a.configPath())
			if err != nil {
				return err
			}
			sources, err := a.selected(cfg, source)
			if err != nil {
				return err
			}
			reports := make([]sourceReport, 0, len(sources))
			worst := doctor.OK
			for _, s := range sources {
				report := examine(cmd.Context(), s)
				reports = append(reports, sourceReport{Source: s.Name, Status: report.Worst(), Report: report})
				worst = worse(worst, report.Worst())
			}
			if err := a.printReports(reports); err != nil {
				return err
			}
			switch worst {
			case doctor.Fail:
				return silent(exitCritical)
			case doctor.Warn:
				return silent(exitWarning)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&source, "source", "", "only this source")
	return cmd
}

// sourceReport is the report about one source.
type sourceReport struct {
	Source string        `json:"source"`
	Status doctor.Status `json:"status"`
	doctor.Report
}

// examine runs all checks of one source.
func examine(ctx context.Context, s config.Source) doctor.Report {
	if !s.Database.IsMySQL() {
		return doctor.Run(ctx, doctorConfig(s))
	}
	cfg, end, err := mysqlDoctorConfig(s)
	if err != nil {
		return doctor.Report{Results: []doctor.Result{{Code: doctor.CodeConnect, Name: "connection",
			Finding: doctor.Finding{Status: doctor.Fail, Message: oneLine(err.Error()), Hint: "correct the dsn or the tls settings of the source"}}}}
	}
	defer end()
	return doctor.RunMySQL(ctx, cfg)
}

// examineOnly runs one check and those that it needs.
func examineOnly(ctx context.Context, s config.Source, code string) (doctor.Result, error) {
	if !s.Database.IsMySQL() {
		cfg := doctorConfig(s)
		cfg.Poll = true // the reader explains its own rights, and the poller does without
		return doctor.Only(ctx, cfg, code), nil
	}
	cfg, end, err := mysqlDoctorConfig(s)
	if err != nil {
		return doctor.Result{}, err
	}
	defer end()
	cfg.Poll = true
	return doctor.OnlyMySQL(ctx, cfg, code), nil
}

// mysqlDoctorConfig makes what the doctor of a MySQL or MariaDB source needs; end closes it.
func mysqlDoctorConfig(s config.Source) (cfg doctor.MySQLConfig, end func(), err error) {
	s.MaxConnections = 2
	pool, err := newMySQLPool(s)
	if err != nil {
		return cfg, nil, err
	}
	where, err := s.MySQLConfig()
	if err != nil {
		return cfg, nil, errors.Join(err, pool.Close())
	}
	cfg = doctor.MySQLConfig{Config: doctorConfig(s), Pool: pool, Address: where.Addr, ServerID: s.ServerID()}
	end = func() { _ = pool.Close() } // nothing is left in it
	if s.MySQL.DSN != "" && s.Mode != config.ModePoll {
		log := s
		log.DSN, log.MaxConnections = s.MySQL.DSN, 1
		if cfg.Log, err = newMySQLPool(log); err != nil {
			end()
			return cfg, nil, err
		}
		end = func() { _, _ = pool.Close(), cfg.Log.Close() }
	}
	return cfg, end, nil
}

func doctorConfig(s config.Source) doctor.Config {
	return doctor.Config{
		DSN: s.DSN, ReplicationDSN: s.Postgres.DSN, Password: s.Password, Poll: s.Mode == config.ModePoll,
		Slot: s.Postgres.Slot, Publication: s.Postgres.Publication, Create: s.Postgres.Create,
		Table: s.Table, Schema: s.Schema,
	}
}

func worse(a, b doctor.Status) doctor.Status {
	if a == doctor.Fail || b == doctor.OK {
		return a
	}
	return b
}

func (a *app) printReports(reports []sourceReport) error {
	if a.format == outputJSON {
		return a.json(reports)
	}
	var p paper
	for i, r := range reports {
		if i > 0 {
			p.WriteByte('\n')
		}
		if len(reports) > 1 {
			p.line("Source", "%s", r.Source)
		}
		if err := r.WriteText(&p); err != nil {
			return err
		}
	}
	return a.print(&p)
}
