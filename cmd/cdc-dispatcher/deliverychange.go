package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// bulk is a change of many deliveries: what is common to retry and discard.
type bulk struct {
	choice
	all    bool
	dryRun bool
	why    string
	// verb and done name it: "retry", "retried".
	verb, done string
	// states that it concerns unless --state narrows them, and those that it can be
	// asked for by name.
	states, also []delivery.State
	// apply gives one order.
	apply func(ctx context.Context, d desk, o admin.Order, f admin.Filter) (admin.Done, error)
}

// changed is what a change prints.
type changed struct {
	// Matching deliveries were counted before, Changed after.
	Matching admin.Count `json:"matching"`
	Changed  int64       `json:"changed"`
	DryRun   bool        `json:"dry_run"`
}

func (a *app) deliveriesRetryCommand(source *string) *cobra.Command {
	var reset bool
	b := &bulk{verb: "retry", done: "retried", states: []delivery.State{delivery.Failed, delivery.Dead, delivery.Expired, delivery.Blocked},
		also: []delivery.State{delivery.Succeeded, delivery.Discarded}}
	b.apply = retryOnce(&reset)
	cmd := &cobra.Command{
		Use: "retry [ID…]", Short: "Make deliveries due again, now", Args: cobra.ArbitraryArgs,
		Long: `Make deliveries due again, now: those of the ids, or all that the filter matches, however many.
They are counted first and nothing happens before it is confirmed. Attempts start anew; the history
stays. Without --state these are the failed, dead, expired and blocked ones; succeeded and discarded
ones are retried only when their state or id is named.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.change(cmd, *source, b, args) },
	}
	b.flags(cmd)
	cmd.Flags().BoolVar(&reset, "reset-attempts", false, "count failed attempts from zero, so that delays start small again")
	return cmd
}

// retryOnce gives orders that together retry each delivery once, however many they are.
func retryOnce(reset *bool) func(context.Context, desk, admin.Order, admin.Filter) (admin.Done, error) {
	var first time.Time // when the first order was given
	return func(ctx context.Context, d desk, o admin.Order, f admin.Filter) (admin.Done, error) {
		done, err := d.RetryDeliveries(ctx, admin.Retry{Order: o, Filter: f, Succeeded: true, ResetAttempts: *reset, Before: first})
		if first.IsZero() {
			first = done.At
		}
		return done, err
	}
}

func (a *app) deliveriesDiscardCommand(source *string) *cobra.Command {
	b := &bulk{verb: "discard", done: "discarded",
		states: []delivery.State{delivery.Pending, delivery.Failed, delivery.Dead, delivery.Expired, delivery.Blocked}}
	b.apply = func(ctx context.Context, d desk, o admin.Order, f admin.Filter) (admin.Done, error) {
		return d.DiscardDeliveries(ctx, admin.Discard{Order: o, Filter: f})
	}
	cmd := &cobra.Command{
		Use: "discard [ID…]", Short: "End deliveries without an attempt", Args: cobra.ArbitraryArgs,
		Long: `End deliveries that have not succeeded: those of the ids, or all that the filter matches. They
are counted first and nothing happens before it is confirmed. They stay visible, as DISCARDED, and can
be retried.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.change(cmd, *source, b, args) },
	}
	b.flags(cmd)
	return cmd
}

func (b *bulk) flags(cmd *cobra.Command) {
	b.choice.flags(cmd)
	// "reason" chooses deliveries; why they are changed is another matter.
	cmd.Flags().StringVarP(&b.why, "message", "m", "", "why, for the audit log and the history")
	cmd.Flags().BoolVar(&b.all, "all", false, "all of them, without a filter")
	cmd.Flags().BoolVar(&b.dryRun, "dry-run", false, "only count")
}

// change counts, asks, and gives orders until nothing is left.
func (a *app) change(cmd *cobra.Command, source string, b *bulk, ids []string) error {
	f, err := b.filter(cmd, ids)
	if err != nil {
		return err
	}
	if f.String() == (admin.Filter{}).String() && !b.all {
		return usage("name ids, give a filter such as --handler or --state, or --all", "%s would change every delivery", cmd.CommandPath())
	}
	if err := b.narrow(cmd, &f); err != nil {
		return err
	}
	return a.withDesk(cmd.Context(), source, func(ctx context.Context, d desk) error {
		result := changed{DryRun: b.dryRun}
		if result.Matching, err = d.CountDeliveries(ctx, f); err != nil {
			return err
		}
		if b.dryRun || result.Matching.N == 0 {
			return a.printChange(b, result)
		}
		if err := a.confirm(fmt.Sprintf("%s: %s %s of source %s?", f, b.verb, deliveries(result.Matching), d.source.Name), ", or with --dry-run to only count"); err != nil {
			return err
		}
		for more := true; more; {
			done, err := b.apply(ctx, d, admin.Order{Actor: a.actor(), Reason: b.why, RequestID: uuid.NewString()}, f)
			if err != nil {
				if result.Changed > 0 {
					a.say("%d were %s before this:", result.Changed, b.done)
				}
				return err
			}
			result.Changed += done.Count
			more = done.More
		}
		return a.printChange(b, result)
	})
}

// narrow keeps the states that the change concerns. Named ids and named states are
// meant as they are.
func (b *bulk) narrow(cmd *cobra.Command, f *admin.Filter) error {
	possible := slices.Concat(b.states, b.also)
	for _, s := range f.States {
		if !slices.Contains(possible, s) {
			return usage(cmd.CommandPath()+" --help", "deliveries in state %s cannot be %s", s, b.done)
		}
	}
	switch {
	case len(f.States) > 0:
	case len(f.IDs) > 0:
		f.States = possible
	default:
		f.States = b.states
	}
	return nil
}

func deliveries(c admin.Count) string {
	if c.N == 1 && !c.More {
		return "1 delivery"
	}
	return c.String() + " deliveries"
}

func (a *app) printChange(b *bulk, r changed) error {
	if a.format == outputJSON {
		return a.json(r)
	}
	switch {
	case r.DryRun:
		a.say("would %s %s", b.verb, deliveries(r.Matching))
	case r.Matching.N == 0:
		a.say("nothing to %s: no delivery matches", b.verb)
	default:
		a.say("%s %s", b.done, deliveries(admin.Count{N: r.Changed}))
		if left := r.Matching.N - r.Changed; left > 0 {
			a.say("%s were left alone: a process is working on them, or they changed meanwhile", deliveries(admin.Count{N: left}))
		}
	}
	return nil
}
