//go:build unix

package localserver

import (
	"os"
	"testing"
)

func TestEnsureMySQLTakesTheNewestLocalServer(t *testing.T) {
	for _, want := range FindMySQL(t.Context()) {
		got, err := EnsureMySQL(t.Context(), want.Family, func(text string) { t.Errorf("it said %q", text) })
		if err != nil {
			t.Fatal(err)
		}
		if got.Family != want.Family || compareVersions(got.Version, want.Version) < 0 {
			t.Errorf("got %+v, there is %+v", got, want)
		}
	}
}

// The script's failure is an error, and leaves nothing.
func TestInstallServerRefusesAnUnknownName(t *testing.T) {
	t.Setenv("CDC_DISPATCHER_SERVERS", t.TempDir())
	if err := installServer(t.Context(), "oracle-23"); err == nil {
		t.Error("an unknown server was installed")
	}
	left, err := os.ReadDir(Cache())
	if err != nil || len(left) > 0 {
		t.Errorf("left in the cache: %v, %v", left, err)
	}
}
