package postgres

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/internal/fanorder"
)

// fanBatch is a batch prepared for a statement: each event once, sorted by id.
type fanBatch struct {
	delivery.FanOut
	// order lists the fans that take part, as indexes into Fans. The statement counts them from 1.
	// The first rows of them are looked for in the table, the others are to be made of their images.
	order []int
	rows  int
	// absent lists those of order that are not in the table, unmarked those that are there, pending, and did
	// not take the mark.
	absent, unmarked []int64
	// repeated counts fans that are in the batch twice; duplicates names those that differ.
	repeated   int
	duplicates []string
}

func newFanBatch(batch delivery.FanOut) *fanBatch {
	o := fanorder.Of(batch.Fans)
	b := &fanBatch{FanOut: batch, order: o.Fans, rows: o.Rows, repeated: o.Repeated, duplicates: o.Duplicates}
	return b
}

// event returns the n-th event of the statement.
func (b *fanBatch) event(n int64) *event.Event { return &b.Fans[b.order[n-1]].Event }

// images lists the absent events that the log has an image of.
func (b *fanBatch) images() []int64 {
	var images []int64
	for _, n := range b.withTargets(b.absent) {
		if b.Fans[b.order[n-1]].FromLog {
			images = append(images, n)
		}
	}
	return images
}

// imageOnly lists the events whose rows are left alone.
func (b *fanBatch) imageOnly() []int64 {
	var images []int64
	for i := b.rows; i < len(b.order); i++ {
		images = append(images, int64(i)+1)
	}
	return images
}

// withTargets lists the events that get deliveries.
func (b *fanBatch) withTargets(events []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(events), func(n int64) bool { return len(b.Fans[b.order[n-1]].Targets) == 0 })
}

// rowArgs are parameters 1 to 13 of fanOutSQL, for the events that are looked for in the table, which all lists.
func (b *fanBatch) rowArgs() (all []int64, args []any, err error) {
	var (
		ids     []pgtype.UUID
		keys    []string
		targets []int64
	)
	for i, fan := range b.order[:b.rows] {
		e := &b.Fans[fan].Event
		id, err := uuid.Parse(e.ID)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errNoUUID, err)
		}
		all = append(all, int64(i)+1)
		ids = append(ids, asUUID(id))
		keys = append(keys, cmp.Or(e.Key, e.ID))
		targets = append(targets, int64(len(b.Fans[fan].Targets)))
	}
	return all, append([]any{ids, keys, targets}, b.targetArgs(all)...), nil
}

// targetArgs are parameters 4 to 13 of insertSQL, for the given events.
func (b *fanBatch) targetArgs(events []int64) []any {
	var (
		ids                        []pgtype.UUID
		handlers, blocked, details []string
		numbers, windows           []int64
		leases                     []bool
	)
	for _, n := range events {
		for _, target := range b.Fans[b.order[n-1]].Targets {
			ids = append(ids, asUUID(target.ID))
			numbers = append(numbers, n)
			handlers = append(handlers, target.Handler)
			leases = append(leases, target.Lease)
			windows = append(windows, micros(target.Window))
			blocked = append(blocked, target.Blocked)
			details = append(details, clean(target.Detail))
		}
	}
	return []any{
		ids, numbers, handlers, leases, windows, blocked, details,
		b.Lease.Token.String(), clean(b.Lease.Owner), micros(b.Lease.For),
	}
}

// count counts the targets of events, and those of them that are to be leased.
func (b *fanBatch) count(events []int64) (targets int, leases int64) {
	for _, n := range events {
		for _, target := range b.Fans[b.order[n-1]].Targets {
			targets++
			if wantsLease(target) {
				leases++
			}
		}
	}
	return targets, leases
}

// asked is what was created when a statement did all that it was asked for.
func (b *fanBatch) asked(events []int64, targets int) []delivery.Created {
	list := make([]delivery.Created, 0, targets)
	for _, n := range events {
		fan := b.order[n-1]
		for j, target := range b.Fans[fan].Targets {
			list = append(list, delivery.Created{Fan: fan, Target: j, Leased: wantsLease(target)})
		}
	}
	return list
}

// wantsLease says that the delivery is to be created leased. It is not if its time is over already.
func wantsLease(t delivery.Target) bool { return t.Lease && t.Blocked == "" }

// created translates what a statement inserted.
func (b *fanBatch) created(inserted, leased []pgtype.UUID) []delivery.Created {
	targets := make(map[uuid.UUID]delivery.Created)
	for _, fan := range b.order {
		for j, target := range b.Fans[fan].Targets {
			targets[target.ID] = delivery.Created{Fan: fan, Target: j}
		}
	}
	isLeased := make(map[uuid.UUID]bool, len(leased))
	for _, id := range leased {
		isLeased[id.Bytes] = true
	}
	list := make([]delivery.Created, 0, len(inserted))
	for _, id := range inserted {
		c := targets[id.Bytes]
		c.Leased = isLeased[id.Bytes]
		list = append(list, c)
	}
	return list
}

// imageArgs are the parameters of imageSQL for the given events.
func (b *fanBatch) imageArgs(images []int64, inColumn bool) []any {
	var (
		ids, namespaces, actionIDs, actionNames, modelIDs, modelTypes, types, traces []string
		params, started, completed, dates, headers                                   []*string
		payloads                                                                     [][]byte
		keys                                                                         []string
		targets                                                                      []int64
	)
	for _, n := range images {
		e := b.event(n)
		ids = append(ids, e.ID)
		keys = append(keys, cmp.Or(e.Key, e.ID))
		targets = append(targets, int64(len(b.Fans[b.order[n-1]].Targets)))
		namespaces = append(namespaces, e.Namespace)
		actionIDs = append(actionIDs, e.ActionID)
		actionNames = append(actionNames, e.ActionName)
		params = append(params, jsonText(e.ActionParams))
		started = append(started, timeText(e.StartedDate))
		completed = append(completed, timeText(e.CompletionDate))
		modelIDs = append(modelIDs, e.ModelID)
		modelTypes = append(modelTypes, e.ModelType)
		types = append(types, e.Type)
		payloads = append(payloads, e.Payload)
		dates = append(dates, timeText(e.Date))
		traces = append(traces, e.Traceparent)
		headers = append(headers, jsonText(e.Headers))
	}
	args := append([]any{images, ids, inColumn}, b.targetArgs(images)...)
	return append(args, namespaces, actionIDs, actionNames, params, started, completed,
		modelIDs, modelTypes, types, payloads, dates, traces, headers, keys, targets)
}
