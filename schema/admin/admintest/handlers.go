package admintest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

func handlerTests() []test {
	return []test{
		{"Handlers_PauseAndResume", pauseAndResume},
		{"Handlers_ResumeReachesFormerNames", resumeFormerNames},
	}
}

func pauseAndResume(s *suite) {
	serve := func() map[string]delivery.Pause {
		return s.serve(delivery.Handler{Name: "mailer", Aliases: []string{"mail"}, Types: []string{"order.*"}}, delivery.Handler{Name: "audit", Types: []string{"*"}})
	}
	serve()
	order := func(name string, changed bool, fn func(context.Context, string, string, string) (bool, error)) {
		s.Helper()
		if got, err := fn(s.Context(), name, "maria", "smtp is down"); err != nil || got != changed {
			s.Errorf("%s: changed = %v, %v; want %v", name, got, err, changed)
		}
	}
	order("mail", true, s.admin.PauseHandler)
	paused := serve()
	if p := paused["mailer"]; len(paused) != 1 || p.By != "maria" || p.Reason != "smtp is down" || p.At.IsZero() {
		s.Errorf("paused = %+v", paused)
	}
	if _, err := s.admin.PauseHandler(s.Context(), "mailer", "karl", "me too"); err != nil {
		s.Error(err)
	}
	list, err := s.admin.ListHandlers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if len(list) != 2 || list[0].Name != "audit" || list[0].Paused != nil || list[1].Paused == nil || list[1].Paused.By != "maria" ||
		list[1].LastOwner != "host/1" || list[1].Silent < 0 || list[1].Aliases[0] != "mail" || list[1].Types[0] != "order.*" {
		s.Errorf("handlers = %+v", list)
	}
	order("mailer", true, s.admin.ResumeHandler)
	order("mailer", false, s.admin.ResumeHandler)
	if paused := serve(); len(paused) != 0 {
		s.Errorf("still paused: %+v", paused)
	}
	for _, name := range []string{"ghost", "Mailer"} {
		if _, err := s.admin.PauseHandler(s.Context(), name, "maria", ""); !errors.Is(err, admin.ErrNotFound) {
			s.Errorf("unknown handler %s = %v", name, err)
		}
	}
	if _, err := s.admin.PauseHandler(s.Context(), "mailer", "", ""); !errors.Is(err, admin.ErrNoActor) {
		s.Errorf("a pause by nobody: %v", err)
	}
	var got []string
	for _, l := range s.AuditLog(s) {
		got = append(got, strings.TrimSpace(fmt.Sprintln(l.Actor, l.Action, l.Target, l.Affected, l.Reason)))
	}
	s.equal("audit log", []string{
		"maria handlers.pause mailer 1 smtp is down", "karl handlers.pause mailer 0 me too",
		"maria handlers.resume mailer 1 smtp is down", "maria handlers.resume mailer 0 smtp is down",
	}, got)
}

// A pause comes along when a handler is renamed, and so does its end, whichever name is given.
func resumeFormerNames(s *suite) {
	rename := func() map[string]delivery.Pause {
		return s.serve(delivery.Handler{Name: "post", Aliases: []string{"mailer", "mail"}, Types: []string{"*"}}, delivery.Handler{Name: "audit", Types: []string{"*"}})
	}
	for _, name := range []string{"post", "mailer", "mail"} {
		s.Reset(s)
		s.serve(delivery.Handler{Name: "mailer", Aliases: []string{"mail"}, Types: []string{"*"}}, delivery.Handler{Name: "audit", Types: []string{"*"}})
		for _, handler := range []string{"mailer", "audit"} {
			if _, err := s.admin.PauseHandler(s.Context(), handler, "maria", ""); err != nil {
				s.Fatal(err)
			}
		}
		if paused := rename(); len(paused) != 2 || paused["post"].By != "maria" {
			s.Errorf("the pause got lost in the renaming: %+v", paused)
		}
		if changed, err := s.admin.ResumeHandler(s.Context(), name, "maria", ""); err != nil || !changed {
			s.Errorf("resume %s: changed = %v, %v", name, changed, err)
		}
		if paused := rename(); len(paused) != 1 || paused["audit"].By != "maria" {
			s.Errorf("after %s was resumed: %+v", name, paused)
		}
	}
}
