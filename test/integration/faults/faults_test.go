package faults

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/nemesis"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// TestFaults carries the plan of a seed out on every server, and with SOAK those of one seed
// after the other. Faults come by number, so that a slow machine takes longer and shows the same.
func TestFaults(t *testing.T) {
	binary := testbed.Build(t)
	seed, options := settings(t)
	deadline := time.Now().Add(soak(t))
	var sums tally
	for {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			plan := nemesis.Make(seed, options)
			eachEngine(t, func(t *testing.T, e engine) {
				sums.add(newArena(t, e, binary, seed).carryOut(plan))
			})
		})
		if time.Now().After(deadline) || t.Failed() {
			break
		}
		seed++
	}
	sums.publish(t)
}

// settings are what the environment says: SEED, and DECKS. Without SEED a soak begins at a
// new one; a run of all tests always has the same plan.
func settings(t *testing.T) (uint64, nemesis.Options) {
	t.Helper()
	seed, decks := uint64(1), 1
	if os.Getenv("SOAK") != "" {
		seed = uint64(time.Now().Unix())
	}
	if s := os.Getenv("SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("SEED: %v", err)
		}
	}
	if s := os.Getenv("DECKS"); s != "" {
		var err error
		if decks, err = strconv.Atoi(s); err != nil {
			t.Fatalf("DECKS: %v", err)
		}
	}
	return seed, nemesis.Options{Decks: decks, Handlers: len(handlers), Lease: lease}
}

// soak is how long to go on with further seeds.
func soak(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv("SOAK")
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("SOAK is a duration, such as 1h: %v", err)
	}
	return d
}
