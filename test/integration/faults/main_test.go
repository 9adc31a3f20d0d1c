package faults

import (
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
