package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

func (a *app) deliveriesCommand() *cobra.Command {
	var source string
	cmd := newGroup("deliveries", "Look at deliveries, retry or discard them",
		a.deliveriesListCommand(&source), a.deliveriesShowCommand(&source),
		a.deliveriesRetryCommand(&source), a.deliveriesDiscardCommand(&source))
	sourceFlag(cmd, &source)
	return cmd
}

// choice is the part of a command line that chooses deliveries.
type choice struct {
	event, handler, typ, reason string
	states                      []string
	since, until                instant
}

func (c *choice) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.handler, "handler", "", "of this handler, stored under any of its names")
	f.StringSliceVar(&c.states, "state", nil, "in these states: pending, failed, succeeded, expired, dead, blocked, discarded")
	f.StringVar(&c.typ, "type", "", `of this event type; "order.*" for a prefix`)
	f.StringVar(&c.event, "event", "", "of this event")
	f.StringVar(&c.reason, "reason", "", "that ended with this reason, such as permanent or no_handler")
	f.Var(&c.since, "since", "of events since then: 2026-01-31, 2026-01-31T12:00:00Z, or an age such as 15m or 7d")
	f.Var(&c.until, "until", "of events before then")
}

// filter reads the choice. ids are the arguments of the command.
func (c *choice) filter(cmd *cobra.Command, ids []string) (f admin.Filter, err error) {
	f = admin.Filter{Event: c.event, Handler: c.handler, Type: c.typ, Reason: c.reason, Since: c.since.t, Until: c.until.t}
	for _, text := range ids {
		id, err := uuid.Parse(text)
		if err != nil {
			return f, usage("cdc-dispatcher deliveries list, whose first column is the id", "%q is not the id of a delivery", text)
		}
		f.IDs = append(f.IDs, id)
	}
	if c.event != "" {
		if _, err := uuid.Parse(c.event); err != nil {
			return f, usage("cdc-dispatcher events list, whose first column is the id", "%q is not the id of an event", c.event)
		}
	}
	for _, s := range c.states {
		state := delivery.State(strings.ToUpper(strings.TrimSpace(s)))
		if state == "RETRYING" {
			state = delivery.Failed
		}
		if !slices.Contains(delivery.States(), state) {
			return f, usage(cmd.CommandPath()+" --help", "%q is not a state", s)
		}
		f.States = append(f.States, state)
	}
	return f, nil
}

func (a *app) deliveriesListCommand(source *string) *cobra.Command {
	var c choice
	var page admin.Page
	cmd := &cobra.Command{
		Use: "list", Short: "List deliveries, newest first", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := c.filter(cmd, nil)
			if err != nil {
				return err
			}
			return a.withDesk(cmd.Context(), *source, func(ctx context.Context, d desk) error {
				page, err := d.ListDeliveries(ctx, f, page)
				if err != nil {
					return err
				}
				return a.printDeliveries(page)
			})
		},
	}
	c.flags(cmd)
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "at most this many, up to 1000")
	cmd.Flags().StringVar(&page.After, "after", "", "go on behind this page, as the last one said")
	return cmd
}

func (a *app) printDeliveries(page admin.Deliveries) error {
	if a.format == outputJSON {
		if page.Deliveries == nil {
			page.Deliveries = []admin.Delivery{}
		}
		return a.json(page)
	}
	rows := [][]string{{"DELIVERY", "EVENT", "TYPE", "HANDLER", "STATE", "ATTEMPTS", "EVENT DATE", "NEXT", "REASON"}}
	for _, d := range page.Deliveries {
		rows = append(rows, []string{
			d.ID.String(), d.EventID, d.EventType, d.Handler, stateWord(d), fmt.Sprint(d.Claims), moment(d.EventDate), next(d), why(d.Reason, d.LastError),
		})
	}
	if err := a.printTable(rows); err != nil {
		return err
	}
	if page.Next != "" {
		a.say("more: --after %s", page.Next)
	}
	return nil
}

func stateWord(d admin.Delivery) string {
	if d.Leased {
		return string(d.State) + " (running)"
	}
	return string(d.State)
}

func next(d admin.Delivery) string {
	if !d.State.Open() || d.Leased {
		return "-"
	}
	return moment(d.Due)
}

func why(reason, lastError string) string {
	switch {
	case reason != "" && lastError != "" && reason != lastError:
		return reason + ": " + lastError
	case reason == "":
		return lastError
	}
	return reason
}

func (a *app) deliveriesShowCommand(source *string) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one delivery and its history", Args: oneArg("the id of a delivery"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var c choice
			f, err := c.filter(cmd, args)
			if err != nil {
				return err
			}
			return a.withDesk(cmd.Context(), *source, func(ctx context.Context, d desk) error {
				story, err := d.ShowDelivery(ctx, f.IDs[0])
				if err != nil {
					return err
				}
				return a.printStory(story)
			})
		},
	}
}

func (a *app) printStory(s admin.DeliveryStory) error {
	if a.format == outputJSON {
		return a.json(s)
	}
	var p paper
	p.fields([][2]string{
		{"Delivery", s.ID.String()}, {"Handler", s.Handler}, {"State", stateWord(s.Delivery)}, {"Reason", why(s.Reason, s.LastError)},
		{"Attempts", fmt.Sprintf("%d begun, %d failed", s.Claims, s.Attempts)}, {"Next", next(s.Delivery)}, {"Leased to", s.LeaseOwner},
		{"Created", moment(s.Created)}, {"Finished", moment(s.Finished)}, {"Retried", moment(s.Retried)},
		{"Event", s.EventID}, {"Type", s.EventType}, {"Model", strings.TrimSpace(s.ModelType + " " + s.ModelID)}, {"Event date", moment(s.EventDate)},
		{"Traceparent", s.Event.Traceparent}, {"Headers", string(s.Event.Headers)}, {"Payload", string(s.Event.Payload)},
	})
	if len(s.History) == 0 {
		return a.print(&p)
	}
	p.WriteByte('\n')
	rows := [][]string{{"STARTED", "ATTEMPT", "OUTCOME", "TOOK", "REASON", "MESSAGE"}}
	for _, h := range s.History {
		rows = append(rows, []string{moment(h.Started), fmt.Sprint(h.Attempt), h.Outcome, span(h.Took), why(h.Reason, h.Error), h.Message})
	}
	p.table(rows)
	return a.print(&p)
}
