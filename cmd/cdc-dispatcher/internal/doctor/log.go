package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// checkReplicate opens a replication connection and closes it: only that shows that
// the server, its pg_hba.conf and everything on the way let one through.
func checkReplicate(ctx context.Context, s *session) (Finding, error) {
	c, ok := s.config(s.cfg.ReplicationDSN)
	if !ok {
		return Finding{Status: Fail, Message: "the DSN for the log is neither a URL nor key=value text that can be read", Hint: hintDSN}, nil
	}
	c.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, &c.Config)
	if err != nil {
		f := connectFinding(err, c)
		if sqlState(err) == stateProtocolViolation {
			f.Hint = "point the DSN for the log at the server itself: poolers do not carry replication connections"
		}
		return f, nil
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing is left in it
	theirs, err := identify(ctx, conn)
	if err != nil {
		return Finding{}, err
	}
	var own string
	if err := s.row(ctx, `SELECT system_identifier || ' ' || current_database() || ' ' || pg_is_in_recovery() FROM pg_control_system()`, nil, &own); err != nil {
		return Finding{}, err
	}
	if own != theirs {
		return Finding{Status: Fail, Message: "the DSN for the log leads to another database, or to a standby",
			Hint: "let both DSNs name the same database of the same primary"}, nil
	}
	return Finding{Status: OK, Message: "the server lets a replication connection in"}, nil
}

// identify asks over the simple protocol, the only one that a replication connection speaks.
func identify(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	results, err := conn.Exec(ctx, "SELECT system_identifier || ' ' || current_database() || ' ' || pg_is_in_recovery() FROM pg_control_system()").ReadAll()
	if err != nil {
		return "", err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return "", errors.New("the server does not answer on the replication connection")
	}
	return string(results[0].Rows[0][0]), nil
}

// publication is the publication as it concerns the event table.
type publication struct {
	insert, viaRoot        bool
	contains, filtered     bool
	partitioned            bool
	columns                []string // nil: all
	has                    []string // the columns of the table
	mayCreate, mayAddTable bool
	mayAlter               bool
}

func (s *session) publication(ctx context.Context) (p publication, exists bool, err error) {
	err = s.row(ctx, `
		SELECT p.pubname IS NOT NULL, coalesce(p.pubinsert, false), coalesce(p.pubviaroot, false),
		       coalesce(p.puballtables OR r.prrelid IS NOT NULL
		           OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = t.relnamespace)
		           OR EXISTS (SELECT FROM pg_partition_ancestors(t.oid) a
		                      JOIN pg_publication_rel x ON x.prrelid = a.relid AND x.prpubid = p.oid), false),
		       r.prqual IS NOT NULL, t.relkind = 'p',
		       (SELECT array_agg(a.attname::text) FROM unnest(r.prattrs::int2[]) k(n) JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.n),
		       (SELECT array_agg(a.attname::text) FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped),
		       has_database_privilege(current_database(), 'CREATE') AND pg_has_role(t.relowner, 'USAGE'),
		       coalesce(pg_has_role(p.pubowner, 'USAGE') AND pg_has_role(t.relowner, 'USAGE'), false),
		       coalesce(pg_has_role(p.pubowner, 'USAGE'), false)
		FROM pg_class t
		LEFT JOIN pg_publication p ON p.pubname = $2
		LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = t.oid
		WHERE t.oid = $1::text::regclass`, []any{s.quotedTable(), s.cfg.Publication},
		&exists, &p.insert, &p.viaRoot, &p.contains, &p.filtered, &p.partitioned, &p.columns, &p.has, &p.mayCreate, &p.mayAddTable, &p.mayAlter)
	return p, exists, err
}

func (s *session) quotedTable() string {
	return ident(s.cfg.Table.Schema) + "." + ident(s.cfg.Table.Name)
}

const hintOwner = "run it as the owner of the event table"

func checkPublication(ctx context.Context, s *session) (Finding, error) {
	p, exists, err := s.publication(ctx)
	if err != nil {
		return Finding{}, err
	}
	name := s.cfg.Publication
	switch {
	case exists:
		return Finding{Status: OK, Message: "the publication exists", Value: name}, nil
	case s.cfg.Create && p.mayCreate:
		return Finding{Status: OK, Message: "there is no publication yet; run creates it", Value: name}, nil
	}
	f := Finding{Status: Fail, Message: fmt.Sprintf("publication %q does not exist", name), Hint: hintOwner,
		Fix: []string{fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true)", ident(name), s.quotedTable())}}
	if s.cfg.Create {
		f.Message += ", and this role may not create it"
	}
	return f, nil
}

func checkPublished(ctx context.Context, s *session) (Finding, error) {
	p, exists, err := s.publication(ctx)
	if err != nil {
		return Finding{}, err
	}
	name, table := ident(s.cfg.Publication), s.quotedTable()
	again := []string{fmt.Sprintf("ALTER PUBLICATION %s DROP TABLE %s", name, table), fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", name, table)}
	switch {
	case !exists:
		return Finding{Status: OK, Message: "the event table will be published"}, nil
	case !p.insert:
		return Finding{Status: Fail, Message: "the publication leaves inserts out", Hint: "run it as the owner of the publication",
			Fix: []string{fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert')", name)}}, nil
	case !p.contains && s.cfg.Create && p.mayAddTable:
		return Finding{Status: OK, Message: "the event table is not published yet; run adds it"}, nil
	case !p.contains:
		return Finding{Status: Fail, Message: "the publication does not have the event table", Hint: hintOwner,
			Fix: []string{fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", name, table)}}, nil
	case p.columns != nil && len(s.unpublished(p)) > 0:
		return Finding{Status: Fail, Message: "the publication leaves out columns of the event", Value: strings.Join(s.unpublished(p), ", "),
			Fix: again, Hint: hintOwner}, nil
	case p.filtered:
		return Finding{Status: Warn, Message: "the publication has a row filter: rows that it hides are found by the poller only", Fix: again, Hint: hintOwner}, nil
	case p.partitioned && !p.viaRoot && s.cfg.Create && p.mayAlter:
		return Finding{Status: OK, Message: "the publication announces rows under the names of partitions; run changes that"}, nil
	case p.partitioned && !p.viaRoot:
		return Finding{Status: Fail, Message: "the publication announces rows under the names of partitions: of one that is gone, nobody can tell whose it was",
			Fix: []string{fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true)", name)}, Hint: "run it as the owner of the publication"}, nil
	}
	return Finding{Status: OK, Message: "inserts into the event table are published"}, nil
}

// unpublished lists the columns of the event that a column list leaves out. Those for trace and headers
// need not be in the table; where they are, a condition may ask for them.
func (s *session) unpublished(p publication) []string {
	c := s.cfg.Table.Columns
	var missing []string
	for _, name := range []string{
		c.ID, c.Namespace, c.ActionID, c.ActionName, c.ActionParams, c.StartedDate, c.CompletionDate,
		c.ModelID, c.ModelType, c.Type, c.Payload, c.Date, c.Traceparent, c.Headers,
	} {
		if slices.Contains(p.has, name) && !slices.Contains(p.columns, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

// slot is a row of pg_replication_slots, read as JSON because each version has columns
// that the others do not know.
type slot struct {
	Type        string `json:"slot_type"`
	Plugin      string `json:"plugin"`
	Database    string `json:"database"`
	Temporary   bool   `json:"temporary"`
	ActivePID   int    `json:"active_pid"`
	WALStatus   string `json:"wal_status"`
	SafeWALSize *int64 `json:"safe_wal_size"`
	// From 16, 17 and 17 on.
	Conflicting   bool       `json:"conflicting"`
	Invalidation  string     `json:"invalidation_reason"`
	InactiveSince *time.Time `json:"inactive_since"`
	// Retained is how much WAL the slot keeps.
	Retained int64 `json:"retained"`
}

func (s *session) slot(ctx context.Context) (*slot, error) {
	var b []byte
	err := s.row(ctx, `SELECT to_jsonb(s) || jsonb_build_object('retained', coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint)
		FROM pg_replication_slots s WHERE slot_name = $1`, []any{s.cfg.Slot}, &b)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found slot
	if err := json.Unmarshal(b, &found); err != nil {
		return nil, fmt.Errorf("read pg_replication_slots: %w", err)
	}
	return &found, nil
}

func (s *session) createSlot() string {
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", literal(s.cfg.Slot))
}

func (s *session) dropSlot() string {
	return fmt.Sprintf("SELECT pg_drop_replication_slot(%s)", literal(s.cfg.Slot))
}

func checkSlot(ctx context.Context, s *session) (Finding, error) {
	found, err := s.slot(ctx)
	if err != nil {
		return Finding{}, err
	}
	name := s.cfg.Slot
	wrong := func(what, hint string, fix ...string) (Finding, error) {
		return Finding{Status: Fail, Message: fmt.Sprintf("slot %q %s", name, what), Fix: fix, Hint: hint}, nil
	}
	const other = "drop it only if nobody uses it; otherwise configure another slot name"
	switch {
	case found == nil && s.cfg.Create:
		return Finding{Status: OK, Message: "there is no slot yet; run creates it", Value: name}, nil
	case found == nil:
		return wrong("does not exist", "create the publication first", s.createSlot())
	case found.Type != "logical":
		return wrong("is a "+found.Type+" slot", other, s.recreate()...)
	case found.Plugin != "pgoutput":
		return wrong("belongs to the plugin "+found.Plugin+", not to pgoutput", other, s.recreate()...)
	case found.Database != s.database:
		return wrong(fmt.Sprintf("belongs to database %q", found.Database), "configure another slot name: slots of all databases share one set of names")
	case found.Temporary:
		return wrong("is temporary", "it ends with its session; configure another slot name")
	}
	f := Finding{Status: OK, Message: "the slot exists and nobody reads from it", Value: name}
	switch {
	case found.ActivePID != 0:
		f.Message = fmt.Sprintf("the slot is being read by process %d", found.ActivePID)
	case found.InactiveSince != nil:
		f.Value += ", inactive since " + found.InactiveSince.UTC().Format(time.RFC3339)
	}
	return f, nil
}

// recreate is what makes a slot ours; without the second statement where run does that.
func (s *session) recreate() []string {
	if s.cfg.Create {
		return []string{s.dropSlot()}
	}
	return []string{s.dropSlot(), s.createSlot()}
}

func checkSlotHealth(ctx context.Context, s *session) (Finding, error) {
	found, err := s.slot(ctx)
	if err != nil || found == nil {
		return Finding{Status: OK, Message: "there is no slot that could retain WAL"}, err
	}
	return s.judge(*found), nil
}

// judge says how good a slot of ours is.
func (s *session) judge(found slot) Finding {
	f := Finding{Status: OK, Message: "the slot is good", Value: fmt.Sprintf("%s, retains %s", found.WALStatus, size(found.Retained))}
	lost := found.WALStatus == "lost" || found.Conflicting || found.Invalidation != ""
	switch {
	case lost && s.cfg.Create:
		f.Status, f.Message, f.Fix = Warn, "the server has invalidated the slot; run replaces it and sweeps the table", s.recreate()
	case lost:
		f.Status, f.Message, f.Fix = Fail, "the server has invalidated the slot; nothing can be read from it again", s.recreate()
		f.Hint = "the events of the time between are found by the poller"
	case found.WALStatus == "unreserved", found.SafeWALSize != nil && *found.SafeWALSize < found.Retained/4:
		f.Status, f.Message = Warn, "the slot is about to be lost: it retains nearly as much WAL as max_slot_wal_keep_size allows"
		f.Hint = "start the dispatcher, or find out why it does not get on"
		if found.ActivePID == 0 {
			f.Hint = "start the dispatcher: nobody reads from the slot"
		}
	}
	if found.Invalidation != "" {
		f.Value += ", " + found.Invalidation
	}
	return f
}

func size(bytes int64) string {
	const kib = 1024
	switch {
	case bytes < kib*kib:
		return fmt.Sprintf("%d kB", bytes/kib)
	case bytes < kib*kib*kib:
		return fmt.Sprintf("%d MB", bytes/kib/kib)
	}
	return fmt.Sprintf("%.1f GB", float64(bytes)/kib/kib/kib)
}

// checkTransactions looks for what slot creation waits for and what keeps vacuum from cleaning up.
func checkTransactions(ctx context.Context, s *session) (Finding, error) {
	var pid, hidden int
	var gid, who, database string
	var age time.Duration
	err := s.row(ctx, `
		WITH old AS (
		    SELECT pid, '' AS gid, concat_ws(', ', usename, application_name, state) AS who, datname AS database, clock_timestamp() - xact_start AS age
		    FROM pg_stat_activity
		    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND clock_timestamp() - xact_start > $1
		    UNION ALL
		    SELECT 0, gid, concat_ws(', ', owner, 'prepared'), database, clock_timestamp() - prepared FROM pg_prepared_xacts
		    WHERE clock_timestamp() - prepared > $1)
		SELECT coalesce(o.pid, 0), coalesce(o.gid, ''), coalesce(o.who, ''), coalesce(o.database, ''), coalesce(o.age, '0'),
		       (SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND xact_start IS NULL)
		FROM (SELECT 1) one LEFT JOIN LATERAL (SELECT * FROM old ORDER BY age DESC LIMIT 1) o ON true`,
		[]any{s.cfg.LongTransaction}, &pid, &gid, &who, &database, &age, &hidden)
	if err != nil {
		return Finding{}, err
	}
	f := Finding{Status: OK, Message: "no transaction is open for long"}
	switch {
	case gid != "":
		f.Fix = []string{"ROLLBACK PREPARED " + literal(gid)}
		f.Hint = fmt.Sprintf("ask its owner first, and run it in database %q", database)
	case pid != 0:
		f.Fix = []string{fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid)}
		f.Hint = "ask its owner first"
	default:
		if hidden > 0 {
			f.Value = fmt.Sprintf("%d sessions of other roles are hidden from this one", hidden)
		}
		return f, nil
	}
	f.Status, f.Message = Warn, "a transaction is open for long: a slot cannot be created meanwhile, and dead rows stay"
	f.Value = fmt.Sprintf("%s, for %s", who, age.Round(time.Millisecond))
	return f, nil
}
