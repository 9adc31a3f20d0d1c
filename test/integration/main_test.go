package integration

import (
	"os"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) {
	if isChild() {
		os.Exit(childMain())
	}
	testdb.Main(m)
}
