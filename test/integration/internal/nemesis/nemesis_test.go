package nemesis_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/nemesis"
)

var options = nemesis.Options{Decks: 2, Handlers: 2, Lease: 6 * time.Second}

func TestMake_TheSameSeedMakesTheSamePlan(t *testing.T) {
	for seed := range uint64(50) {
		if diff := cmp.Diff(nemesis.Make(seed, options), nemesis.Make(seed, options)); diff != "" {
			t.Fatalf("two plans of seed %d:\n%s", seed, diff)
		}
	}
	if cmp.Equal(nemesis.Make(1, options), nemesis.Make(2, options)) {
		t.Error("seeds 1 and 2 make the same plan")
	}
}

func TestMake_EveryKindIsInEveryDeck(t *testing.T) {
	one := options
	one.Decks = 1
	for seed := range uint64(50) {
		long, counts := 0, map[nemesis.Kind]int{}
		for _, step := range nemesis.Make(seed, one).Steps {
			for _, f := range step.Faults {
				counts[f.Kind]++
				if f.Kind == nemesis.Freeze && f.For > one.Lease {
					long++
				}
			}
		}
		for _, kind := range nemesis.Kinds() {
			if counts[kind] == 0 {
				t.Errorf("seed %d: no %s", seed, kind)
			}
		}
		if len(counts) != len(nemesis.Kinds()) || long == 0 {
			t.Errorf("seed %d: %v, of them %d longer than the lease", seed, counts, long)
		}
	}
}

func TestMake_FaultsOfOneStepDoNotGetInEachOthersWay(t *testing.T) {
	alone := []nemesis.Kind{nemesis.Restart, nemesis.ForgetLog}
	server := []nemesis.Kind{nemesis.Crash, nemesis.Exhaust, nemesis.Lock, nemesis.Alter, nemesis.Pause}
	together := 0
	for seed := range uint64(200) {
		plan := nemesis.Make(seed, options)
		for _, step := range plan.Steps {
			atServer, broken := 0, map[nemesis.Fault]bool{}
			for _, f := range step.Faults {
				if slices.Contains(alone, f.Kind) && len(step.Faults) > 1 {
					t.Fatalf("seed %d: %v", seed, step)
				}
				if slices.Contains(server, f.Kind) {
					atServer++
				}
				if f.Process >= plan.Processes || f.Handler >= options.Handlers {
					t.Fatalf("seed %d: %v with %d processes", seed, f, plan.Processes)
				}
				broken[f] = true
			}
			if atServer > 1 || len(broken) < len(step.Faults) || len(step.Faults) == 0 {
				t.Fatalf("seed %d: %v", seed, step)
			}
			if len(step.Faults) > 1 {
				together++
			}
		}
	}
	if together == 0 {
		t.Error("no two faults happen together")
	}
}

func TestFault_String(t *testing.T) {
	for _, test := range []struct {
		fault nemesis.Fault
		want  string
	}{
		{nemesis.Fault{Kind: nemesis.Kill, Process: 1, For: time.Second}, "kill -9 of process 1 for 1s"},
		{nemesis.Fault{Kind: nemesis.Cut, Path: nemesis.Log}, "cut of log of process 0"},
		{nemesis.Fault{Kind: nemesis.Alter}, "ADD COLUMN"},
		{nemesis.Fault{Kind: nemesis.Hang, Handler: 1, For: time.Second}, "hanging receiver of handler 1 for 1s"},
	} {
		if got := test.fault.String(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
