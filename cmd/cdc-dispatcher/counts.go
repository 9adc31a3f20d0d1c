package main

import (
	"context"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/server"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
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
	out := make([]server.HandlerCounts, 0, len(o.Handlers))
	for _, h := range o.Handlers {
		out = append(out, server.HandlerCounts{
			Handler: h.Handler,
			Pending: h.States[delivery.Pending].N, Retrying: h.States[delivery.Failed].N,
			Dead: h.States[delivery.Dead].N, Blocked: h.States[delivery.Blocked].N,
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
