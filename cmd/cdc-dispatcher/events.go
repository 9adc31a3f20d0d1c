package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// maxData bounds the payload that "events emit" reads.
const maxData = 64 << 20

func (a *app) eventsCommand() *cobra.Command {
	var source string
	cmd := newGroup("events", "Look at events, or emit one for a test",
		a.eventsListCommand(&source), a.eventsShowCommand(&source), a.eventsEmitCommand(&source))
	sourceFlag(cmd, &source)
	return cmd
}

func (a *app) eventsListCommand(source *string) *cobra.Command {
	var f admin.EventFilter
	var page admin.Page
	var since, until instant
	cmd := &cobra.Command{
		Use: "list", Short: "List events, newest first", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.Since, f.Until = since.t, until.t
			return a.withDesk(cmd.Context(), *source, func(ctx context.Context, d desk) error {
				page, err := d.ListEvents(ctx, f, page)
				if err != nil {
					return err
				}
				return a.printEvents(page)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Type, "type", "", `of this type; "order.*" for a prefix`)
	flags.BoolVar(&f.Pending, "pending", false, "only those that are not fanned out yet")
	flags.Var(&since, "since", "since then: 2026-01-31, 2026-01-31T12:00:00Z, or an age such as 15m or 7d")
	flags.Var(&until, "until", "before then")
	flags.IntVar(&page.Limit, "limit", 50, "at most this many, up to 1000")
	flags.StringVar(&page.After, "after", "", "go on behind this page, as the last one said")
	return cmd
}

func (a *app) printEvents(page admin.Events) error {
	if a.format == outputJSON {
		if page.Events == nil {
			page.Events = []admin.EventSummary{}
		}
		return a.json(page)
	}
	rows := [][]string{{"EVENT", "TYPE", "DATE", "MODEL", "DELIVERIES"}}
	for _, e := range page.Events {
		id := e.ID
		if e.Key != "" {
			id += " (key " + e.Key + ")"
		}
		rows = append(rows, []string{id, e.Type, moment(e.Date), strings.TrimSpace(e.ModelType + " " + e.ModelID), stateCounts(e)})
	}
	if err := a.printTable(rows); err != nil {
		return err
	}
	if page.Next != "" {
		a.say("more: --after '%s'", page.Next)
	}
	return nil
}

// stateCounts says what became of an event.
func stateCounts(e admin.EventSummary) string {
	var parts []string
	for _, s := range delivery.States() {
		if n := e.Deliveries[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, ", ")
	case e.Pending:
		return "not fanned out"
	}
	return "none"
}

func (a *app) eventsShowCommand(source *string) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one event and the story of its deliveries", Args: oneArg("the id or the key of an event"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDesk(cmd.Context(), *source, func(ctx context.Context, d desk) error {
				story, err := d.ShowEvent(ctx, args[0])
				if err != nil {
					return err
				}
				if a.format == outputJSON {
					return a.json(story)
				}
				return a.printEvent(story)
			})
		},
	}
}

func (a *app) printEvent(s admin.EventStory) error {
	e := s.Event
	where := "in the event table"
	switch {
	case !s.InTable:
		where = "not in the event table any more; this is the copy in its deliveries"
	case s.Rows > 1:
		where = fmt.Sprintf("in the event table %d times", s.Rows)
	case s.Pending:
		where = "in the event table, not fanned out yet"
	}
	var p paper
	p.fields([][2]string{
		{"Event", e.ID}, {"Key", e.Key}, {"Type", e.Type}, {"Date", moment(e.Date)}, {"Model", strings.TrimSpace(e.ModelType + " " + e.ModelID)},
		{"Namespace", e.Namespace}, {"Action", strings.TrimSpace(e.ActionName + " " + e.ActionID)}, {"Traceparent", e.Traceparent},
		{"Headers", string(e.Headers)}, {"Payload", string(e.Payload)}, {"Row", where},
	})
	for _, d := range s.Deliveries {
		p.add("\n%s\n", printable(d.Handler))
		timeline(&p, d)
	}
	return a.print(&p)
}

// timeline adds one line per thing that happened to a delivery.
func timeline(p *paper, d admin.DeliveryStory) {
	line := func(when, what, detail string) {
		p.add("  %-24s %s\n", when, printable(strings.TrimSpace(what+"  "+detail)))
	}
	line(moment(d.Created), "created", d.ID.String())
	for _, h := range d.History {
		detail := why(h.Reason, h.Error)
		if h.Message != "" {
			detail = strings.TrimSpace(detail + "  " + h.Message)
		}
		line(moment(h.Started), fmt.Sprintf("attempt %d: %s after %s", h.Attempt, h.Outcome, span(h.Took)), detail)
	}
	when := moment(d.Finished)
	switch {
	case d.Leased:
		line("now", "attempt "+fmt.Sprint(d.Claims)+" is running", "until "+moment(d.LeaseUntil)+" at "+d.LeaseOwner)
	case d.State.Open():
		line(moment(d.Due), "next attempt", string(d.State))
	default:
		line(when, string(d.State), why(d.Reason, d.LastError))
	}
}

func (a *app) eventsEmitCommand(source *string) *cobra.Command {
	var e admin.Emit
	var data, headers string
	cmd := &cobra.Command{
		Use: "emit", Short: "Insert one event, as an application would", Args: noArgs,
		Long: `Insert one event into the event table, as an application would, in a transaction of its own. It
is for tests and repairs: what an application emits belongs into the transaction of its change.`,
		Example: `  cdc-dispatcher events emit --type order.placed --data '{"total": 9.5}'
  cdc-dispatcher events emit --type order.placed --data @order.json --model-type Order --model-id 42`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.Type == "" {
				return usage(cmd.CommandPath()+" --type order.placed --data '{}'", "an event needs a type")
			}
			var err error
			if e.Payload, err = a.document(data, "--data"); err != nil {
				return err
			}
			if e.Headers, err = a.document(headers, "--headers"); err != nil {
				return err
			}
			e.Actor = a.actor()
			return a.withDesk(cmd.Context(), *source, func(ctx context.Context, d desk) error {
				out, err := d.EmitEvent(ctx, e)
				if err != nil {
					return err
				}
				if a.format == outputJSON {
					return a.json(out)
				}
				_, err = fmt.Fprintln(a.out, out.ID)
				return err
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.Type, "type", "", "type of the event (required)")
	flags.StringVar(&data, "data", "{}", "payload, JSON; @FILE reads a file, @- standard input")
	flags.StringVar(&headers, "headers", "", "headers, a JSON object; @FILE reads a file")
	flags.StringVar(&e.ID, "id", "", "key of the row (default: the table's own, or a new UUID)")
	flags.StringVar(&e.ModelType, "model-type", "", "type of the model that changed")
	flags.StringVar(&e.ModelID, "model-id", "", "id of the model that changed")
	flags.StringVar(&e.Namespace, "namespace", "", "namespace of the producer")
	flags.StringVar(&e.Traceparent, "traceparent", "", "W3C trace context")
	return cmd
}

// document reads JSON from a flag. The bytes stay as they are.
func (a *app) document(text, flag string) (json.RawMessage, error) {
	if text == "" {
		return nil, nil
	}
	data := []byte(text)
	if path, ok := strings.CutPrefix(text, "@"); ok {
		in := a.in
		if path != "-" {
			f, err := os.Open(path)
			if err != nil {
				return nil, failed(codeFile, "check the path behind @", "%s cannot be read: %s", path, innermost(err))
			}
			defer f.Close() //nolint:errcheck // only read from
			in = f
		}
		var err error
		if data, err = io.ReadAll(io.LimitReader(in, maxData+1)); err != nil {
			return nil, failed(codeFile, "check the path behind @", "%s cannot be read: %s", path, innermost(err))
		}
		if len(data) > maxData {
			return nil, failed(codeInput, "emit smaller payloads, and keep the rest elsewhere", "%s is larger than 64 MiB", path)
		}
	}
	if !json.Valid(data) {
		return nil, failed(codeInput, "write valid JSON; a text is in double quotes: '\"text\"'", "%s is not JSON", flag)
	}
	return slices.Clip(data), nil
}
