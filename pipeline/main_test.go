package pipeline

import (
	"os"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childEnv); dsn != "" {
		runChild(dsn) // until it is killed, see TestQ6
		return
	}
	testdb.Main(m)
}
