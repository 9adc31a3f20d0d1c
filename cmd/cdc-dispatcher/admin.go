package main

import (
	"context"
	"errors"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// operator answers the commands and carries out their orders; every SQL store has one.
type operator interface {
	Overview(context.Context) (admin.Overview, error)
	ListEvents(context.Context, admin.EventFilter, admin.Page) (admin.Events, error)
	ShowEvent(ctx context.Context, id string) (admin.EventStory, error)
	EmitEvent(context.Context, admin.Emit) (admin.Emitted, error)
	ListDeliveries(context.Context, admin.Filter, admin.Page) (admin.Deliveries, error)
	CountDeliveries(context.Context, admin.Filter) (admin.Count, error)
	ShowDelivery(context.Context, uuid.UUID) (admin.DeliveryStory, error)
	RetryDeliveries(context.Context, admin.Retry) (admin.Done, error)
	DiscardDeliveries(context.Context, admin.Discard) (admin.Done, error)
	ListHandlers(context.Context) ([]admin.HandlerInfo, error)
	PauseHandler(ctx context.Context, name, by, why string) (changed bool, err error)
	ResumeHandler(ctx context.Context, name, by, why string) (changed bool, err error)
}

// desk is what commands that ask or change the database work at: one source.
type desk struct {
	operator
	*database
}

// withDesk runs fn for one source; fn's error comes back with a code and an advice.
func (a *app) withDesk(ctx context.Context, name string, fn func(context.Context, desk) error) error {
	cfg, err := a.load(a.configPath())
	if err != nil {
		return err
	}
	s, err := a.source(cfg, name)
	if err != nil {
		return err
	}
	return atDesk(ctx, s, fn)
}

// eachDesk runs fn for the named source, or for all in turn.
func (a *app) eachDesk(ctx context.Context, name string, fn func(context.Context, desk) error) error {
	return a.eachSource(name, func(s config.Source) error { return atDesk(ctx, s, fn) })
}

func atDesk(ctx context.Context, s config.Source, fn func(context.Context, desk) error) error {
	s.MaxConnections = 2
	db, err := openDatabase(s)
	if err != nil {
		return err
	}
	op, err := db.operator()
	if err == nil {
		err = asked(s, fn(ctx, desk{operator: op, database: db}))
	}
	return errors.Join(err, db.close())
}

// asked explains why a question was not answered.
func asked(s config.Source, err error) error {
	var f *failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.Is(err, admin.ErrNotFound):
		return &failure{exit: exitFailed, code: codeNotFound, message: "source " + s.Name + ": " + err.Error(), try: "list them, and check the spelling", cause: err}
	case errors.Is(err, admin.ErrSlow):
		return &failure{exit: exitFailed, code: codeBusy, message: "source " + s.Name + ": " + err.Error(), try: "narrow the filter", cause: err}
	}
	if f := databaseFailure(s.Name, err); f != nil {
		return f
	}
	return err
}

// sourceFlag adds --source to a command that works on one source.
func sourceFlag(cmd *cobra.Command, name *string) {
	cmd.PersistentFlags().StringVar(name, "source", "", "the source, when the configuration has several")
}

// actor names who runs this command, for the audit log.
func (a *app) actor() string {
	name, _ := a.lookup("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if name == "" {
		name = "uid " + strconv.Itoa(os.Getuid())
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// instant is a flag for a moment: RFC 3339, a date, or an age such as 15m or 7d.
type instant struct{ t time.Time }

// Set implements pflag.Value.
func (i *instant) Set(s string) error {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			i.t = t.UTC()
			return nil
		}
	}
	age, err := config.ParseDuration(strings.TrimSuffix(s, " ago"))
	if err != nil {
		return errors.New("want 2026-01-31, 2026-01-31T12:00:00Z, or an age such as 15m or 7d")
	}
	i.t = time.Now().UTC().Add(-age)
	return nil
}

func (i *instant) String() string {
	if i.t.IsZero() {
		return ""
	}
	return i.t.Format(time.RFC3339)
}

// Type implements pflag.Value.
func (*instant) Type() string { return "time" }
