package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

func (a *app) handlersCommand() *cobra.Command {
	var source string
	cmd := newGroup("handlers", "Look at handlers, pause and resume them",
		a.handlersListCommand(&source), a.handlersPauseCommand(&source), a.handlersResumeCommand(&source))
	sourceFlag(cmd, &source)
	return cmd
}

// listedHandler is a handler and the source it belongs to.
type listedHandler struct {
	Source string `json:"source"`
	admin.HandlerInfo
}

func (a *app) handlersListCommand(source *string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the handlers that processes serve", Args: noArgs,
		Long: "List the handlers that any process has ever served, with their pauses and when they were last seen.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := []listedHandler{}
			err := a.eachDesk(cmd.Context(), *source, func(ctx context.Context, d desk) error {
				list, err := d.ListHandlers(ctx)
				for _, h := range list {
					all = append(all, listedHandler{d.source.Name, h})
				}
				return err
			})
			if err != nil && len(all) == 0 {
				return err
			}
			if a.format == outputJSON {
				return errors.Join(a.json(all), err)
			}
			rows := [][]string{{"SOURCE", "HANDLER", "TYPES", "ALIASES", "LAST SEEN", "STATE"}}
			for _, h := range all {
				state := "active"
				if h.Paused != nil {
					state = fmt.Sprintf("paused by %s %s: %s", h.Paused.By, moment(h.Paused.At), h.Paused.Reason)
				}
				rows = append(rows, []string{h.Source, h.Name, strings.Join(h.Types, " "), strings.Join(h.Aliases, " "), span(h.Silent) + " ago", state})
			}
			return errors.Join(a.printTable(rows), err)
		},
	}
}

func (a *app) handlersPauseCommand(source *string) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: "pause NAME", Short: "Stop a handler's deliveries in every process", Args: oneArg("the name of a handler"),
		Long: `Stop a handler's deliveries in every process, within some seconds. Running attempts finish, new
deliveries wait. A reason is required: whoever finds the handler paused will want to know.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(why) == "" {
				return usage(fmt.Sprintf("%s %s --reason \"…\"", cmd.CommandPath(), args[0]), "a pause needs a reason")
			}
			return a.withDesk(cmd.Context(), *source, func(ctx context.Context, d desk) error {
				if err := a.confirm(fmt.Sprintf("Pause handler %s of source %s in every process?", args[0], d.source.Name), ""); err != nil {
					return err
				}
				did, err := d.PauseHandler(ctx, args[0], a.actor(), why)
				return a.printPause(args[0], "paused", did, err)
			})
		},
	}
	cmd.Flags().StringVar(&why, "reason", "", "why (required)")
	return cmd
}

func (a *app) handlersResumeCommand(source *string) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Let a paused handler go on", Args: oneArg("the name of a handler"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDesk(cmd.Context(), *source, func(ctx context.Context, d desk) error {
				did, err := d.ResumeHandler(ctx, args[0], a.actor(), why)
				return a.printPause(args[0], "resumed", did, err)
			})
		},
	}
	cmd.Flags().StringVar(&why, "reason", "", "why, for the audit log")
	return cmd
}

func (a *app) printPause(name, done string, did bool, err error) error {
	if err != nil {
		return err
	}
	if a.format == outputJSON {
		return a.json(map[string]any{"handler": name, done: true, "changed": did})
	}
	if !did {
		a.say("nothing changed: handler %s was %s before", name, done)
		return nil
	}
	a.say("handler %s is %s", name, done)
	return nil
}
