package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func noop(context.Context, event.Envelope) error { return nil }

// named is a valid handler.
func named(name string, aliases ...string) Handler {
	return Handler{Name: name, Aliases: aliases, On: []string{"*"}, Handler: event.HandlerFunc(noop)}
}

// found runs the registry's checks and returns what they say, as "path: message".
func found(handlers ...Handler) []string {
	var ps problems
	newRegistry(handlers, time.Minute, &ps)
	var out []string
	for _, p := range ps {
		out = append(out, p.Path+": "+p.Message)
	}
	return out
}

func TestA80toA88_Registration(t *testing.T) {
	for _, tc := range []struct {
		name     string
		handlers []Handler
		want     []string
	}{
		{"valid", []Handler{named("mailer", "mail", "postman"), named("audit")}, nil},
		{"A80 blank name", []Handler{named(" ")}, []string{"handlers[0].name: is blank"}},
		{"A84 same name twice", []Handler{named("a"), named("a")},
			[]string{`handlers[1].name: "a" is already taken by handlers[0].name`}},
		{"A84 alias taken by a later name", []Handler{named("a", "b"), named("b")},
			[]string{`handlers[1].name: "b" is already taken by handlers[0].aliases[0]`}},
		{"A84 alias taken by an earlier name", []Handler{named("b"), named("a", "b")},
			[]string{`handlers[1].aliases[0]: "b" is already taken by handlers[0].name`}},
		{"A84 alias of two", []Handler{named("a", "x"), named("b", "x")},
			[]string{`handlers[1].aliases[0]: "x" is already taken by handlers[0].aliases[0]`}},
		{"A84 alias twice in one", []Handler{named("a", "x", "x")},
			[]string{`handlers[0].aliases[1]: "x" is already taken by handlers[0].aliases[0]`}},
		{"A85 alias equals own name", []Handler{named("a", "a")},
			[]string{`handlers[0].aliases[0]: "a" is the handler's own name; an alias is a former name`}},
		{"A86 blank alias", []Handler{named("a", "")}, []string{"handlers[0].aliases[0]: is blank"}},
		{"A86 nil handler", []Handler{{Name: "a", On: []string{"*"}}}, []string{"handlers[0].handler: is nil"}},
		{"M17 names differ only in case", []Handler{named("Mailer"), named("mailer")},
			[]string{`handlers[1].name: "mailer" differs from "Mailer" of handlers[0].name only in case`}},
		{"M17 alias differs from own name only in case", []Handler{named("Mailer", "MAILER")},
			[]string{`handlers[0].aliases[0]: "MAILER" differs from "Mailer" of handlers[0].name only in case`}},
		{"white space", []Handler{named("mailer ")}, []string{`handlers[0].name: "mailer " begins or ends with white space`}},
		{"A63 too long", []Handler{named(strings.Repeat("x", 256))}, []string{"handlers[0].name: has 256 bytes; at most 255 fit the column"}},
		{"control character", []Handler{named("a\x00b")}, []string{`handlers[0].name: "a\x00b" has a control character`}},
		{"all at once", []Handler{named("a", "a"), {Name: "A", On: []string{"x*", ""}, When: "event.tpye == 1", Timeout: time.Hour, Concurrency: -1}}, []string{
			`handlers[0].aliases[0]: "a" is the handler's own name; an alias is a former name`,
			`handlers[1].name: "A" differs from "a" of handlers[0].name only in case`,
			`handlers[1].handler: is nil`,
			`handlers[1].on[0]: "x*" is not a pattern; write a type, "order.*" for a prefix, or "*" for all`,
			`handlers[1].on[1]: is blank`,
			"handlers[1].when: event has no field 'tpye'; it has " + strings.Join(eventFieldNames(), ", "),
			"handlers[1].concurrency: is -1; it must be at least 1",
			"handlers[1].timeout: is 1h0m0s; it must be below the lease, which is 1m0s",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, found(tc.handlers...)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestA88_NamesAndAliases(t *testing.T) {
	var ps problems
	r := newRegistry([]Handler{named("mailer", "mail"), named("audit")}, time.Minute, &ps)
	if len(ps) > 0 {
		t.Fatal(ps)
	}
	if diff := cmp.Diff([]string{"audit", "mail", "mailer"}, r.allNames()); diff != "" {
		t.Error(diff)
	}
	want := []delivery.Handler{{Name: "mailer", Aliases: []string{"mail"}, Types: []string{"*"}}, {Name: "audit", Types: []string{"*"}}}
	if diff := cmp.Diff(want, r.rows()); diff != "" {
		t.Error(diff)
	}
}

func TestRegistryDefaults(t *testing.T) {
	var ps problems
	r := newRegistry([]Handler{named("a")}, 20*time.Second, &ps)
	if got := r.subs[0]; got.Concurrency != 16 || got.Timeout != 10*time.Second || got.Retry != RetryDefault() {
		t.Errorf("defaults under a lease of 20 s: %+v", got.Handler)
	}
}

func TestMatcher(t *testing.T) {
	for _, tc := range []struct {
		on       []string
		yes, no  []string
		wantBad  bool
		wantPoll delivery.Match
	}{
		{on: []string{"order.placed"}, yes: []string{"order.placed"}, no: []string{"order.place", "Order.placed", "order.placed.x", ""},
			wantPoll: delivery.Match{Exact: []string{"order.placed"}}},
		{on: []string{"order.*"}, yes: []string{"order.placed", "order.a.b", "order."}, no: []string{"order", "orders.x", ""},
			wantPoll: delivery.Match{Prefixes: []string{"order."}}},
		{on: []string{"*"}, yes: []string{"x"}, no: []string{""}, wantPoll: delivery.Match{All: true}},
		{on: []string{"b", "a", "b", "z.*"}, yes: []string{"a", "b", "z.1"}, no: []string{"c"},
			wantPoll: delivery.Match{Exact: []string{"a", "b"}, Prefixes: []string{"z."}}},
		{on: []string{".*"}, wantBad: true},
		{on: []string{"*.placed"}, wantBad: true},
		{on: []string{"order*"}, wantBad: true},
		{on: []string{"a.*.*"}, wantBad: true},
		{on: nil, wantBad: true},
	} {
		h := named("a")
		h.On = tc.on
		var ps problems
		r := newRegistry([]Handler{h}, time.Minute, &ps)
		if (len(ps) > 0) != tc.wantBad {
			t.Errorf("%q: problems %v", tc.on, ps)
		}
		if tc.wantBad {
			continue
		}
		for _, typ := range tc.yes {
			if !r.subs[0].match.matches(typ) {
				t.Errorf("%q does not match %q", tc.on, typ)
			}
		}
		for _, typ := range tc.no {
			if r.subs[0].match.matches(typ) {
				t.Errorf("%q matches %q", tc.on, typ)
			}
		}
		if diff := cmp.Diff(tc.wantPoll, r.types()); diff != "" {
			t.Errorf("%q: types for the poller (-want +got):\n%s", tc.on, diff)
		}
	}
}

func TestConfigReportsAllProblemsAtOnce(t *testing.T) {
	err := Config{
		Log:   silentSource{},
		Table: "events",
		Lease: time.Millisecond,
		// A process that lives would be taken for one that is gone.
		OrphanGrace: delivery.HandlerLive - 1,
		Poller:      PollerConfig{Grace: -1},
		Handlers:    []Handler{named("a"), named("a")},
		Triggers: []Trigger{
			{Name: "fan-out", Table: "a.b", OnRecordCreated: func(context.Context, []RecordCreated) error { return nil }},
			{Name: "t", Table: "a.", When: "record.x =="},
			{Name: "t", Table: "a.b", When: "1 + 1"},
		},
	}.Validate()
	var bad *ConfigError
	if !errors.As(err, &bad) {
		t.Fatalf("got %v, want a ConfigError", err)
	}
	var paths []string
	for _, p := range bad.Problems {
		paths = append(paths, p.Path)
	}
	want := []string{"source", "store", "table", "decode", "lease", "orphan_grace", "poller.grace", "handlers[1].name",
		"triggers[0].name", "triggers[1].table", "triggers[1].on_record_created", "triggers[1].when",
		"triggers[2].name", "triggers[2].on_record_created", "triggers[2].when"}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("paths (-want +got):\n%s\n%v", diff, err)
	}
	if !strings.Contains(err.Error(), "15 problems") || !strings.Contains(err.Error(), "    record.x ==\n") {
		t.Errorf("the text lacks the count or the snippet:\n%v", err)
	}
	err = Config{Source: "s", Store: &pipelineStore{}, Triggers: []Trigger{
		{Name: "t", Table: "a.b", OnRecordCreated: func(context.Context, []RecordCreated) error { return nil }}}}.Validate()
	if err == nil || !strings.Contains(err.Error(), "never fires without a log") {
		t.Errorf("a trigger in poll-only mode: %v", err)
	}
}

// silentSource brings nothing.
type silentSource struct{}

func (silentSource) Run(ctx context.Context, _ chan<- cdc.Transaction) error {
	<-ctx.Done()
	return nil
}
func (silentSource) Ack(cdc.Position) {}
