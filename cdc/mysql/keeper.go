package mysql

import "context"

// Keeper decides which process reads a source, and keeps the source's position in
// the source's own database. Another package implements it; see [KeeperOf].
type Keeper interface {
	// Acquire tries to become the reader and does not wait for another one to go. When
	// another process is the reader, tenure is nil, holder names that process as well as
	// is known (never empty), and err is nil.
	Acquire(ctx context.Context) (tenure Tenure, holder string, err error)
}

// Tenure is the time for which a process is the reader. One goroutine uses it.
type Tenure interface {
	// Epoch is greater than that of every earlier tenure of the source, and never zero.
	Epoch() uint64
	// Saved is the position, and the identity of the server that it is of, as they were
	// kept when the tenure began. Both are empty when nothing was ever saved. They are
	// texts that only this package reads.
	Saved() (position, identity string)
	// Check returns nil while this is the latest tenure. Every error ends it: the reader
	// stops reading, calls Release and acquires anew. While it streams the reader calls Check
	// at least every 10 s.
	Check(ctx context.Context) error
	// Save keeps a position, in a transaction of its own, if this is the latest tenure.
	// Errors that a repetition mends (a deadlock, a lock held by a fan-out) are the
	// implementation's to repeat; every error that it returns ends the tenure.
	Save(ctx context.Context, position, identity string) error
	// Release ends the tenure, so that another process can begin its own at once. It
	// must be called once, also after an error of Check or Save.
	Release(ctx context.Context) error
}

// KeeperOf makes a Keeper of a function that returns a tenure type of its own, so that
// the package which implements tenures need not know this one. The tenure that comes with a
// holder or an error is not looked at.
func KeeperOf[T Tenure](acquire func(context.Context) (tenure T, holder string, err error)) Keeper {
	return keeperFunc[T](acquire)
}

type keeperFunc[T Tenure] func(context.Context) (T, string, error)

func (f keeperFunc[T]) Acquire(ctx context.Context) (Tenure, string, error) {
	tenure, holder, err := f(ctx)
	if err != nil || holder != "" {
		return nil, holder, err
	}
	return tenure, "", nil
}
