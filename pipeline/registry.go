package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Defaults of a [Handler].
const (
	defaultConcurrency = 16
	defaultTimeout     = 30 * time.Second
	// maxName is the width of event_notifications.handler_name (A63).
	maxName = 255
)

// registry is the closed set of handlers of a pipeline: immutable once built (A88).
type registry struct {
	subs []*subscriber
}

// newRegistry checks the handlers and compiles their conditions. All problems
// are added to ps; the registry is of use only when there were none.
func newRegistry(handlers []Handler, lease time.Duration, ps *problems) *registry {
	r := &registry{}
	taken := make(nameTable)
	for i, h := range handlers {
		path := fmt.Sprintf("handlers[%d]", i)
		taken.claim(ps, path, h)
		r.subs = append(r.subs, newSubscriber(h, lease, path, ps))
	}
	return r
}

func newSubscriber(h Handler, lease time.Duration, path string, ps *problems) *subscriber {
	if h.Handler == nil {
		ps.add(path+".handler", "is nil")
	}
	sub := &subscriber{match: newMatcher(h.On, path+".on", ps)}
	if h.When != "" {
		cond, err := compileEventCondition(h.When)
		if err != nil {
			ps.condition(path+".when", err)
		}
		sub.cond = cond
	}
	checkLimits(h, lease, path, ps)
	sub.Handler = h.withDefaults(lease)
	sub.names = append([]string{h.Name}, h.Aliases...)
	return sub
}

// withDefaults fills what was left out. A default timeout gives way to a short
// lease; one that was asked for does not, and is a problem.
func (h Handler) withDefaults(lease time.Duration) Handler {
	h.Aliases, h.On = slices.Clone(h.Aliases), slices.Clone(h.On)
	if h.Concurrency == 0 {
		h.Concurrency = defaultConcurrency
	}
	if h.Timeout == 0 {
		h.Timeout = min(defaultTimeout, lease/2)
	}
	h.Retry = h.Retry.withDefaults()
	return h
}

func checkLimits(h Handler, lease time.Duration, path string, ps *problems) {
	if h.Concurrency < 0 {
		ps.add(path+".concurrency", "is %d; it must be at least 1", h.Concurrency)
	}
	switch {
	case h.Timeout < 0:
		ps.add(path+".timeout", "is %s; it must be positive", h.Timeout)
	case h.Timeout >= lease:
		ps.add(path+".timeout", "is %s; it must be below the lease, which is %s", h.Timeout, lease)
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"base", h.Retry.Base}, {"cap", h.Retry.Cap}} {
		if d.value < 0 {
			ps.add(path+".retry."+d.field, "is %s; it must be positive", d.value)
		}
	}
	if p := h.Retry.withDefaults(); h.Retry.Base > 0 && h.Retry.Base > p.Cap {
		ps.add(path+".retry.base", "is %s, above the cap of %s", h.Retry.Base, p.Cap)
	}
	if h.Retry.MaxAttempts < 0 {
		ps.add(path+".retry.max_attempts", "is %d; 0 means no limit", h.Retry.MaxAttempts)
	}
}

// rows describes the handlers for eventlog.handlers.
func (r *registry) rows() []delivery.Handler {
	rows := make([]delivery.Handler, len(r.subs))
	for i, s := range r.subs {
		rows[i] = delivery.Handler{Name: s.Name, Aliases: s.Aliases, Types: s.On}
	}
	return rows
}

// allNames lists every name and alias, sorted.
func (r *registry) allNames() []string {
	var names []string
	for _, s := range r.subs {
		names = append(names, s.names...)
	}
	slices.Sort(names)
	return names
}

// types is the union of what the handlers listen to: the events that the poller
// looks for.
func (r *registry) types() delivery.Match {
	var union delivery.Match
	for _, s := range r.subs {
		m := s.match.Match
		union.All = union.All || m.All
		union.Exact = append(union.Exact, m.Exact...)
		union.Prefixes = append(union.Prefixes, m.Prefixes...)
	}
	if union.All {
		return delivery.Match{All: true}
	}
	slices.Sort(union.Exact)
	slices.Sort(union.Prefixes)
	union.Exact, union.Prefixes = slices.Compact(union.Exact), slices.Compact(union.Prefixes)
	return union
}

// shared returns those of the patterns, as delivery.Handler.Types has them, that have types in common with m.
func shared(m delivery.Match, patterns []string) (common []string) {
	for _, p := range patterns {
		prefix, isPrefix := strings.CutSuffix(p, "*")
		overlaps := m.All || isPrefix && prefix == "" && (len(m.Exact) > 0 || len(m.Prefixes) > 0) ||
			slices.ContainsFunc(m.Exact, func(t string) bool { return t == p || isPrefix && strings.HasPrefix(t, prefix) }) ||
			slices.ContainsFunc(m.Prefixes, func(q string) bool {
				return strings.HasPrefix(p, q) || isPrefix && (strings.HasPrefix(prefix, q) || strings.HasPrefix(q, prefix))
			})
		if overlaps {
			common = append(common, p)
		}
	}
	return common
}

// nameTable finds collisions: names and aliases of all handlers share one
// namespace (A84), in which case does not distinguish, because it does not in
// the unique key of some servers (A79, M17).
type nameTable map[string]takenName

type takenName struct{ name, path string }

// claim enters the names of one handler, and reports those that are unusable.
func (t nameTable) claim(ps *problems, path string, h Handler) {
	t.enter(ps, path+".name", h.Name)
	for i, alias := range h.Aliases {
		at := fmt.Sprintf("%s.aliases[%d]", path, i)
		if alias == h.Name && alias != "" {
			ps.add(at, "%q is the handler's own name; an alias is a former name", alias) // A85
			continue
		}
		t.enter(ps, at, alias)
	}
}

func (t nameTable) enter(ps *problems, path, name string) {
	switch {
	case strings.TrimSpace(name) == "":
		ps.add(path, "is blank") // A80, A86
		return
	case strings.TrimSpace(name) != name:
		ps.add(path, "%q begins or ends with white space", name)
	case len(name) > maxName:
		ps.add(path, "has %d bytes; at most %d fit the column", len(name), maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		ps.add(path, "%q has a control character", name)
	}
	key := strings.ToLower(name)
	switch old, ok := t[key]; {
	case !ok:
		t[key] = takenName{name, path}
	case old.name == name:
		ps.add(path, "%q is already taken by %s", name, old.path)
	default:
		ps.add(path, "%q differs from %q of %s only in case", name, old.name, old.path)
	}
}

// matcher decides whether a handler listens to a type.
type matcher struct {
	delivery.Match
	exact map[string]struct{}
}

// newMatcher reads the patterns of a handler's On.
func newMatcher(patterns []string, path string, ps *problems) matcher {
	m := matcher{exact: make(map[string]struct{})}
	if len(patterns) == 0 {
		ps.add(path, `lists no event type; "*" means all`)
	}
	for i, p := range patterns {
		prefix, isPrefix := strings.CutSuffix(p, "*")
		switch {
		case strings.TrimSpace(p) == "":
			ps.add(fmt.Sprintf("%s[%d]", path, i), "is blank")
		case p == "*":
			m.All = true
		case isPrefix && strings.HasSuffix(prefix, ".") && len(prefix) > 1 && !strings.Contains(prefix, "*"):
			m.Prefixes = append(m.Prefixes, prefix)
		case strings.Contains(p, "*"):
			ps.add(fmt.Sprintf("%s[%d]", path, i),
				`%q is not a pattern; write a type, "order.*" for a prefix, or "*" for all`, p)
		default:
			m.Exact = append(m.Exact, p)
			m.exact[p] = struct{}{}
		}
	}
	return m
}

// matches says whether the handler listens to this type. A sentinel, which has
// none, is listened to by nobody (A53).
func (m matcher) matches(eventType string) bool {
	if eventType == "" {
		return false
	}
	if _, ok := m.exact[eventType]; ok || m.All {
		return true
	}
	return slices.ContainsFunc(m.Prefixes, func(p string) bool { return strings.HasPrefix(eventType, p) })
}
