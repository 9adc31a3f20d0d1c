package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// root is the whole tree of commands.
func (a *app) root() *cobra.Command {
	a.format = outputText
	root := &cobra.Command{
		Use:   "cdc-dispatcher",
		Short: "Deliver the events that an application commits into its own database",
		Long: `cdc-dispatcher reads a database's own log, keeps one delivery row per event and
handler with retries, expiry and fencing, and needs no broker.

To begin:
  cdc-dispatcher demo           watch it work, nothing needed
  cdc-dispatcher init           write cdc-dispatcher.yaml
  cdc-dispatcher migrate up     create its tables
  cdc-dispatcher doctor         check the database, with the statement that mends each finding
  cdc-dispatcher bench          what it costs on your own database, in a schema that is dropped again
  cdc-dispatcher run            deliver

Data goes to stdout, words to stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 configuration
invalid, 4 database not ready, 5 check critical, 6 check warning.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          group,
	}
	flags := root.PersistentFlags()
	flags.StringVarP(&a.configFile, "config", "c", "", "configuration file (default $CDC_DISPATCHER_CONFIG or cdc-dispatcher.yaml)")
	flags.VarP(&a.format, "output", "o", "form of the data: text or json")
	flags.BoolVar(&a.noColor, "no-color", false, "no colours (also NO_COLOR)")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "only data and errors")
	flags.BoolVarP(&a.yes, "yes", "y", false, "do not ask before changes")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(cmd.CommandPath()+" --help", "%v", err)
	})
	root.AddCommand(
		newDemoCommand(a), a.runCommand(), a.initCommand(), a.validateCommand(), a.migrateCommand(), a.doctorCommand(), a.benchCommand(),
		a.statusCommand(), a.eventsCommand(), a.deliveriesCommand(), a.handlersCommand(), a.healthCommand(), a.versionCommand(),
	)
	return root
}

// group is what a command that only has sub-commands does by itself: it shows
// them, or says that there is no such one.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		if cmd.HasParent() {
			return usage(cmd.CommandPath()+" --help", "%s needs a command: %s", cmd.CommandPath(), strings.Join(names(cmd), ", "))
		}
		return cmd.Help()
	}
	try := cmd.CommandPath() + " --help"
	message := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += fmt.Sprintf(" (did you mean %q?)", near[0])
		try = cmd.CommandPath() + " " + near[0]
	}
	return usage(try, "%s", message)
}

func names(cmd *cobra.Command) []string {
	var out []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			out = append(out, c.Name())
		}
	}
	return out
}

// newGroup is a command that only has sub-commands.
func newGroup(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: group, SuggestionsMinimumDistance: 2}
	cmd.AddCommand(subs...)
	return cmd
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd.CommandPath()+" --help", "%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// oneArg wants one argument, and says what.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(cmd.CommandPath()+" --help", "%s wants %s, got %s", cmd.CommandPath(), what, count(len(args), "argument"))
		}
		return nil
	}
}
