package pipeline

const (
	// splitAfter is how often a batch fails, for a reason that is not known to lie in
	// its data, before it is tried in halves.
	splitAfter = 2
	// splitsOnEnd bounds the splits without any success in between. It is enough to get
	// from the largest batch down to one event; more would only take a batch to
	// pieces because the database is away.
	splitsOnEnd = 12
)

// part is a batch, or what halving left of one.
type part struct {
	events []routed
	// failures counts failed tries for a reason that may lie in the database, tries
	// those of exactly these events.
	failures, tries int
	// oks is the count of successful statements at the last failure, suspect how
	// often it had grown since the failure before.
	oks, suspect int
}

// failed notes a failure, oks being how many statements have succeeded so far.
func (p *part) failed(oks int) {
	if p.failures > 0 && oks != p.oks {
		p.suspect++
	}
	p.failures++
	p.tries++
	p.oks = oks
}

// worklist orders the parts of one batch that are still to be fanned out. It is
// pure. Parts that failed down to a single event are stuck: they are tried again
// after something else has succeeded, one at a time and in turn, so that a bad event
// neither holds up the good ones nor escapes comparison with them.
type worklist struct {
	parts, stuck []part
	turn         bool // a stuck event is next
	splits       int  // since the last success
}

func (w *worklist) empty() bool { return len(w.parts)+len(w.stuck) == 0 }

// next takes the next part to try out of the list.
func (w *worklist) next() part {
	from := &w.parts
	if len(w.stuck) > 0 && (w.turn || len(w.parts) == 0) {
		from = &w.stuck
	}
	w.turn = false
	p := (*from)[0]
	*from = (*from)[1:]
	return p
}

// succeeded gives a stuck event its turn.
func (w *worklist) succeeded() { w.turn, w.splits = true, 0 }

// onlyStuck says that nothing is left but single events that fail.
func (w *worklist) onlyStuck() bool { return len(w.parts) == 0 && len(w.stuck) > 0 }

// split puts the halves of a part back. Both inherit its failures but for the
// last, so that the next one splits again: the search for one bad event is quick.
func (w *worklist) split(p part) {
	failures := min(p.failures, splitAfter-1)
	mid := len(p.events) / 2
	w.parts = append([]part{
		{events: p.events[:mid], failures: failures},
		{events: p.events[mid:], failures: failures},
	}, w.parts...)
}

// again puts a part that failed back, whole or in halves.
func (w *worklist) again(p part) {
	switch {
	case len(p.events) == 1:
		w.stuck = append(w.stuck, p)
	case p.failures < splitAfter:
		w.parts = append([]part{p}, w.parts...)
	case w.splits < splitsOnEnd:
		w.splits++
		w.split(p)
	default:
		w.parts = append(w.parts, p) // the others first
	}
}
