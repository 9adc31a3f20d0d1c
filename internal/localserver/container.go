package localserver

import (
	"context"
	"errors"
)

func newContainer(context.Context, *Install, PostgresOptions) (backend, error) {
	return nil, errors.New("not implemented")
}
