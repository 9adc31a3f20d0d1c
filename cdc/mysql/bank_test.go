package mysql

import (
	"context"
	"fmt"
	"sync"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// bank is a Keeper in memory.
type bank struct {
	mu       sync.Mutex
	epoch    uint64
	holder   *seat
	position string
	identity string
	saves    int
	broken   error // of Check and Save
}

func (b *bank) Acquire(context.Context) (Tenure, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holder != nil {
		return nil, "somebody else", nil
	}
	b.epoch++
	b.holder = &seat{bank: b, epoch: b.epoch, position: b.position, identity: b.identity}
	return b.holder, "", nil
}

// depose takes the tenure from whoever has it.
func (b *bank) depose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holder = nil
}

func (b *bank) break_(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
}

func (b *bank) kept() cdc.Position {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cdc.Position(b.position)
}

func (b *bank) countSaves() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.saves
}

// seat is a Tenure of a bank.
type seat struct {
	bank               *bank
	epoch              uint64
	position, identity string
}

func (s *seat) Epoch() uint64           { return s.epoch }
func (s *seat) Saved() (string, string) { return s.position, s.identity }

func (s *seat) Check(context.Context) error {
	s.bank.mu.Lock()
	defer s.bank.mu.Unlock()
	return s.check()
}

func (s *seat) check() error {
	if s.bank.broken != nil {
		return s.bank.broken
	}
	if s.bank.holder != s {
		return fmt.Errorf("epoch %d is over", s.epoch)
	}
	return nil
}

func (s *seat) Save(_ context.Context, position, identity string) error {
	s.bank.mu.Lock()
	defer s.bank.mu.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	s.bank.position, s.bank.identity = position, identity
	s.bank.saves++
	return nil
}

func (s *seat) Release(context.Context) error {
	s.bank.mu.Lock()
	defer s.bank.mu.Unlock()
	if s.bank.holder == s {
		s.bank.holder = nil
	}
	return nil
}
