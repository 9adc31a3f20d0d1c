package postgres

import (
	"context"
	"errors"
	"fmt"
)

// ErrSlotActive is returned by [Drop] while a session streams from the slot.
var ErrSlotActive = errors.New("a session streams from the slot")

// Drop removes the slot and the publication of cfg, both of which may be absent.
// While a session streams from the slot it refuses with [ErrSlotActive], unless
// force is set: then it ends that session. After it, what is not yet read is found
// by the poller alone.
func Drop(ctx context.Context, cfg Config, force bool) error {
	s, err := New(cfg)
	if err != nil {
		return err
	}
	c, err := s.dial(ctx, forWatch)
	if err != nil {
		return err
	}
	defer c.close()
	slot, err := c.inspectSlot(ctx, s.cfg.Slot)
	if err != nil {
		return err
	}
	if slot.Active && !force {
		return fmt.Errorf("slot %q: %w (pid %d)", s.cfg.Slot, ErrSlotActive, slot.ActivePID)
	}
	if slot.exists {
		// A reader that is still about comes back at once, so its session is ended until
		// the slot is free for the moment that dropping it takes.
		if _, err := c.query(ctx, fmt.Sprintf(`DO $drop$ BEGIN
			FOR attempt IN 1..2000 LOOP
				BEGIN
					PERFORM pg_drop_replication_slot(%[1]s);
					RETURN;
				EXCEPTION WHEN object_in_use THEN
					IF attempt = 2000 THEN RAISE; END IF;
				END;
				PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %[1]s AND active;
				PERFORM pg_sleep(0.005);
			END LOOP;
		END $drop$`, quoteLiteral(s.cfg.Slot))); err != nil {
			return fmt.Errorf("drop slot %q: %w", s.cfg.Slot, err)
		}
	}
	if _, err := c.query(ctx, "DROP PUBLICATION IF EXISTS "+quoteIdent(s.cfg.Publication)); err != nil {
		return fmt.Errorf("drop publication %q: %w", s.cfg.Publication, err)
	}
	return nil
}
