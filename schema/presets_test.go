package schema

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPresetsAreValid(t *testing.T) {
	tables := map[string]Table{
		PresetEventlog: Eventlog(""),
		PresetDebezium: Debezium("", ""),
		PresetCustom:   Custom("shop", "outbox", Columns{ID: "id", Type: "kind", Payload: "body"}, Mark{Kind: MarkStatus, Column: "status"}),
	}
	for _, name := range Presets() {
		table, ok := tables[name]
		if !ok {
			t.Fatalf("no table for preset %q", name)
		}
		if table.Preset != name {
			t.Errorf("preset of %q is %q", name, table.Preset)
		}
		if err := table.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPresetNames(t *testing.T) {
	for want, got := range map[string]string{
		"eventlog.events":    Eventlog("").QualifiedName(),
		"log2.events":        Eventlog("log2").QualifiedName(),
		"public.outboxevent": Debezium("", "").QualifiedName(),
		"shop.out":           Debezium("shop", "out").QualifiedName(),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestStatusMarkDefaults(t *testing.T) {
	got := Custom("s", "t", Columns{}, Mark{Kind: MarkStatus, Column: "status", Done: "SENT"}).Mark
	want := Mark{Kind: MarkStatus, Column: "status", Pending: "PENDING", Done: "SENT", None: "NO_DELIVERY"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestValidateReportsEverythingAtOnce: an operator mends a file once, not once per run.
func TestValidateReportsEverythingAtOnce(t *testing.T) {
	long := strings.Repeat("x", 64)
	table := Table{
		Name:     "bad\x00name",
		Columns:  Columns{ID: "id", Payload: "body", Namespace: long, Date: ""},
		Mark:     Mark{Kind: MarkStatus, Column: "body", Pending: "P", Done: "P", None: "P", At: "body"},
		LookBack: -time.Hour,
	}
	var problems Problems
	if err := table.Validate(); !errors.As(err, &problems) {
		t.Fatalf("got %v", err)
	}
	var fields []string
	for _, p := range problems {
		fields = append(fields, p.Field)
		if p.Message == "" || p.Fix == "" {
			t.Errorf("%+v says too little", p)
		}
	}
	want := []string{
		"schema", "table", "columns.namespace", "columns.type",
		"mark.column", "mark.done", "mark.none", "mark.at", "look_back",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Error(diff)
	}
}

func TestValidateMark(t *testing.T) {
	columns := Columns{ID: "id", Type: "type", Payload: "payload", Date: "at"}
	for _, tc := range []struct {
		name     string
		mark     Mark
		lookBack time.Duration
		columns  Columns
		want     string
	}{
		{name: "none", mark: Mark{Kind: MarkNone}, lookBack: time.Hour, columns: columns},
		{name: "boolean", mark: Mark{Kind: MarkBoolean, Column: "done"}, columns: columns},
		{name: "no kind", columns: columns, want: "mark.kind"},
		{name: "other kind", mark: Mark{Kind: "flag", Column: "x"}, columns: columns, want: "mark.kind"},
		{name: "boolean without column", mark: Mark{Kind: MarkBoolean}, columns: columns, want: "mark.column"},
		{name: "none with column", mark: Mark{Kind: MarkNone, Column: "done"}, columns: columns, want: "mark.column"},
		{name: "boolean with a status", mark: Mark{Kind: MarkBoolean, Column: "d", At: "x"}, columns: columns, want: "mark.at"},
		{
			name: "look back without a date", mark: Mark{Kind: MarkNone}, lookBack: time.Hour,
			columns: Columns{ID: "id", Type: "type", Payload: "payload"}, want: "look_back",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Table{Schema: "s", Name: "t", Columns: tc.columns, Mark: tc.mark, LookBack: tc.lookBack}.Validate()
			var problems Problems
			errors.As(err, &problems)
			var fields []string
			for _, p := range problems {
				fields = append(fields, p.Field)
			}
			if got := strings.Join(fields, " "); got != tc.want {
				t.Errorf("got problems with %q, want %q (%v)", got, tc.want, err)
			}
		})
	}
}
