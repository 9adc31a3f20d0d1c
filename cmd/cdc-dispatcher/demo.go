package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/demo"
)

// newDemoCommand shows the whole product without a configuration.
func newDemoCommand(a *app) *cobra.Command {
	var c demo.Config
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch it work: throw-away database, an application, four handlers",
		Long: `Start a throw-away database server, an application that commits events (and rolls some back), and
four handlers, of which two misbehave; show what happens and clean up at the end or on Ctrl-C (a
second Ctrl-C does not wait for the last deliveries). The figures of the result are counted from the
tables and from the application's own account. The exit code is not 0 when a promise was broken.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.For < 0 || c.Rate <= 0 {
				return usage(cmd.CommandPath()+" --for 15s --rate 100", "--for and --rate must be positive")
			}
			if kind, ok := config.DatabaseOf(c.DSN); ok && c.DSN != "" && (!cmd.Flags().Changed("database") || c.Database.IsMySQL() == kind.IsMySQL()) {
				c.Database = kind
			}
			c.Out, c.Live, c.Color = a.err, isTerminal(a.err), a.color()
			if a.quiet {
				c.Out, c.Live = io.Discard, false
			}
			result, err := demo.Run(cmd.Context(), c)
			if err != nil {
				return failed(codeUnclassified, "try again, or give a server of yours with --dsn", "the demo did not run: %v", err)
			}
			if a.format == outputJSON {
				err = a.json(result)
			} else {
				err = result.WriteText(a.out)
			}
			if err != nil {
				return err
			}
			if err := result.Err(); err != nil {
				return failed(codeUnclean, "report it, with the JSON of the result", "a promise was broken: %v", err)
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&c.For, "for", 0, "how long the application writes (default until Ctrl-C)")
	cmd.Flags().Float64Var(&c.Rate, "rate", 100, "transactions per second")
	c.Database = config.DatabasePostgres
	databaseFlag(cmd, &c.Database, "postgres, mysql or mariadb: which server to start")
	cmd.Flags().StringVar(&c.DSN, "dsn", "", "a server of yours; a database is made in it and dropped again")
	return cmd
}
