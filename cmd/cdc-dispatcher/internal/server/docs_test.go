package server

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// counters are those of the pipeline, read from its source so that none is forgotten.
func counters(t *testing.T) []pipeline.Counter {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../../../pipeline/counters.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []pipeline.Counter
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			t.Fatalf("%s is no literal", spec.Names[0])
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pipeline.Counter(text))
		return true
	})
	if len(all) < 40 {
		t.Fatalf("found %d counters", len(all))
	}
	return all
}

// TestDocs: docs/metrics.md has a row for each metric, with its type, labels and help text, and one for
// each occurrence, and no others.
func TestDocs(t *testing.T) {
	families, err := filled(t).Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), namespace+"_") {
			continue
		}
		labels := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
				if l.GetName() == "what" {
					want = append(want, "`"+l.GetValue()+"`")
				}
			}
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()),
			strings.Join(slices.Sorted(maps.Keys(labels)), ", "), f.GetHelp()))
	}
	page, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "| `"+namespace+"_"):
			got = append(got, line)
		case strings.HasPrefix(line, "| `"):
			name, meaning, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
			if got = append(got, name); strings.Trim(meaning, "| ") == "" {
				t.Errorf("it does not say what %s means", name)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/metrics.md (-want +got):\n%s", diff)
	}
}
