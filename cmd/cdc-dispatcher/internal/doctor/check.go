package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// check is one entry of the list for a kind of server. An error from run means that it could not find out.
type check[S any] struct {
	code, name string
	// needs are the codes of checks that must not have failed.
	needs []string
	run   func(ctx context.Context, s S) (Finding, error)
}

// upTo leaves one check of a list, and those that it needs.
func upTo[S any](list []check[S], code string) []check[S] {
	wanted := map[string]bool{code: true}
	for _, c := range slices.Backward(list) { // each stands after what it needs
		for _, need := range c.needs {
			wanted[need] = wanted[need] || wanted[c.code]
		}
	}
	return slices.DeleteFunc(list, func(c check[S]) bool { return !wanted[c.code] })
}

// report runs the checks in order, each within the time limit, and skips those whose ground has failed.
func report[S any](ctx context.Context, s S, list []check[S], limit time.Duration, describe func(error) string) Report {
	var r Report
	failed := map[string]string{} // code of a check → code of the cause
	for _, c := range list {
		res := Result{Code: c.code, Name: c.name, Because: cause(c.needs, failed)}
		if res.Because != "" {
			res.Finding = Finding{Status: Skipped, Message: fmt.Sprintf("not checked before %s is mended", res.Because)}
			failed[c.code] = res.Because
		} else if res.Finding = c.find(ctx, s, limit, describe); res.Status == Fail {
			failed[c.code] = c.code
		}
		r.Results = append(r.Results, res)
	}
	return r
}

// cause returns the code of the root that keeps a check from running.
func cause(needs []string, failed map[string]string) string {
	for _, need := range needs {
		if root := failed[need]; root != "" {
			return root
		}
	}
	return ""
}

func (c check[S]) find(ctx context.Context, s S, limit time.Duration, describe func(error) string) Finding {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	f, err := c.run(ctx, s)
	if err != nil {
		return Finding{Status: Fail, Message: "cannot be checked: " + describe(err)}
	}
	return f
}

// pendingMigrations says which migrations of where, such as "schema eventlog", are not applied.
func pendingMigrations(ctx context.Context, m *migrate.Migrator, where string) (Finding, error) {
	steps, err := m.Status(ctx)
	if err != nil {
		return Finding{}, err
	}
	var pending []string
	for _, step := range steps {
		if !step.Applied {
			pending = append(pending, step.Name)
		}
	}
	if len(pending) > 0 {
		return Finding{Status: Fail, Message: fmt.Sprintf("%d of %d migrations of %s are pending", len(pending), len(steps), where),
			Value: strings.Join(pending, ", "), Hint: hintMigrate}, nil
	}
	return Finding{Status: OK, Message: "all migrations are applied", Value: fmt.Sprint(len(steps))}, nil
}

// lackingTables says what our own tables lack, and the statement that mends it, if one can.
func lackingTables(missing []string, statement string) Finding {
	f := Finding{Status: Fail, Message: "the product's own tables are not as the migrations made them", Value: strings.Join(missing, ", "), Hint: hintMigrate}
	if statement != "" {
		f.Fix, f.Hint = strings.Split(strings.TrimSuffix(statement, ";"), "; "), "run it as the owner of the tables"
	}
	return f
}

// misfit says where the event table is not as it is described.
func misfit(problems schema.Problems) Finding {
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = p.String()
	}
	return Finding{Status: Fail, Message: "the event table does not fit the configuration", Value: strings.Join(lines, "; "),
		Hint: "correct the configuration, or the table"}
}
