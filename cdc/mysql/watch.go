package mysql

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// watch looks at the server at intervals, beside the stream: how far its log reaches,
// and whether the settings are still those that the stream was begun with. Its own failures
// never hurt the stream.
func (st *stream) watch(ctx context.Context) {
	tick := time.NewTicker(st.s.cfg.ProbeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now, err := probe(ctx, st.side, st.cfg, nil)
		switch {
		case cdc.IsPermanent(err):
			st.hear(err)
			return
		case err != nil:
			continue
		case now.mode != st.facts.mode || now.identity != st.facts.identity && now.mode != modeMariaDB:
			st.hear(fmt.Errorf("%w: positions are kept as %s now", errSettings, now.mode))
			return
		}
		st.s.status.seen(now)
	}
}

// hear gives the stream's goroutine a reason to end. Only the first counts.
func (st *stream) hear(err error) {
	select {
	case st.changed <- err:
	default:
	}
}
