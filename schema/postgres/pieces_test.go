package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"
)

func TestRejected(t *testing.T) {
	for code, want := range map[string]bool{
		"22001": true,  // value too long
		"22P02": true,  // invalid text
		"22003": true,  // out of range
		"23502": true,  // not null
		"23505": true,  // somebody's unique index
		"23514": true,  // check
		"54000": true,  // too large for an index
		"P0001": true,  // raised by a trigger
		"P0004": true,  // an assertion of a trigger
		"XX001": true,  // a row that cannot be read back
		"40001": false, // serialization
		"40P01": false, // deadlock
		"25006": false, // read-only
		"42501": false, // no privilege
		"42703": false, // no such column
		"53100": false, // disk full
		"57014": false, // statement timeout
		"57P01": false, // shutting down
		"08006": false, // connection lost
		"XX000": false, // internal
		"":      false,
	} {
		err := fmt.Errorf("around: %w", &pgconn.PgError{Code: code})
		if got := new(Store).Rejected(err); got != want {
			t.Errorf("%q: got %v, want %v", code, got, want)
		}
	}
	if rejected(nil) || rejected(context.DeadlineExceeded) {
		t.Error("an error of the connection counts as one of the row")
	}
}

func TestAgain(t *testing.T) {
	deadlock := &pgconn.PgError{Code: "40P01"}
	for _, tc := range []struct {
		name  string
		err   error
		fails int
		want  int
	}{
		{"success", deadlock, 0, 1},
		{"deadlock", deadlock, 2, 3},
		{"serialization", &pgconn.PgError{Code: "40001"}, 1, 2},
		{"for ever", deadlock, 100, attemptsPerStatement},
		{"stale plan", &pgconn.PgError{Code: "0A000", Routine: "RevalidateCachedQuery"}, 1, 2},
		{"not supported", &pgconn.PgError{Code: "0A000"}, 100, 1},
		{"no PgError", errors.New("x"), 100, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				err := again(t.Context(), func() error {
					if calls++; calls > tc.fails {
						return nil
					}
					return tc.err
				})
				if calls != tc.want || (err == nil) != (tc.fails < tc.want) {
					t.Errorf("%d calls, %v", calls, err)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := again(ctx, func() error { cancel(); return deadlock })
	if !errors.Is(err, context.Canceled) || !errors.Is(err, error(deadlock)) {
		t.Errorf("got %v", err)
	}
}

// TestSeparately: every good item is done, once, and exactly the bad ones are named.
func TestSeparately(t *testing.T) {
	refusal := &pgconn.PgError{Code: "P0001"}
	rapid.Check(t, func(t *rapid.T) {
		bad := rapid.SliceOfN(rapid.Bool(), 0, 40).Draw(t, "bad")
		items := make([]int, len(bad))
		for i := range items {
			items[i] = i
		}
		var done []int
		refused, err := separately(items, func(part []int) error {
			if slices.ContainsFunc(part, func(i int) bool { return bad[i] }) {
				return refusal
			}
			done = append(done, part...)
			return nil
		})
		var want, wantDone []int
		for i := range bad {
			if bad[i] {
				want = append(want, i)
			} else {
				wantDone = append(wantDone, i)
			}
		}
		if !slices.Equal(refused, want) || !slices.Equal(done, wantDone) || (err != nil) != (len(want) > 0) || rejected(err) != (len(want) > 0) {
			t.Fatalf("refused %v, done %v, %v", refused, done, err)
		}
	})
	lost := errors.New("connection lost")
	for _, at := range []int{0, 3, 6} {
		var done []int
		_, err := separately([]int{0, 1, 2, 3, 4, 5, 6, 7}, func(part []int) error {
			switch {
			case len(part) > 1:
				return refusal
			case part[0] == at:
				return lost
			}
			done = append(done, part...)
			return nil
		})
		if !errors.Is(err, lost) || rejected(err) || len(done) != at {
			t.Errorf("lost at %d: did %v, %v", at, done, err)
		}
	}
}
