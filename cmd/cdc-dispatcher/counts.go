package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/server"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// counts asks the tables about the backlog. The questions are bounded in time and in
// what they count.
func (s *supervisor) counts(ctx context.Context) ([]server.HandlerCounts, error) {
	op, err := s.db.operator()
	if err != nil {
		return nil, err
	}
	o, err := op.Overview(ctx)
	if err != nil {
		return nil, err
	}
	return handlerCounts(o)
}

// handlerCounts is what the gauges and the banner use of an overview. A part that could not be had is
// an error: its zeros would say that nothing waits.
func handlerCounts(o admin.Overview) ([]server.HandlerCounts, error) {
	for _, part := range []string{"handlers", "open", "stuck"} {
		if slices.Contains(o.Incomplete, part) {
			return nil, fmt.Errorf("count %s deliveries: %w", part, admin.ErrSlow)
		}
	}
	out := make([]server.HandlerCounts, 0, len(o.Handlers))
	for _, h := range o.Handlers {
		pending, retrying, dead, blocked := h.States[delivery.Pending], h.States[delivery.Failed], h.States[delivery.Dead], h.States[delivery.Blocked]
		out = append(out, server.HandlerCounts{
			Handler: h.Handler,
			Pending: pending.N, Retrying: retrying.N, Dead: dead.N, Blocked: blocked.N,
			Capped:    pending.More || retrying.More || dead.More || blocked.More,
			OldestAge: h.Oldest,
		})
	}
	return out, nil
}

// countNow is for the banner, which can do without.
func (d *dispatcher) countNow(ctx context.Context, s *supervisor) []server.HandlerCounts {
	counts, err := s.counts(ctx)
	if err != nil {
		return nil
	}
	return counts
}

// refresh keeps the table-wide gauges of one source.
func (d *dispatcher) refresh(ctx context.Context, s *supervisor) {
	d.metrics.Refresh(ctx, server.Source{Name: s.source.Name, Report: s.report}, s.counts, d.log)
}
