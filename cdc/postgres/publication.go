package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// tableState is a registered table as the catalog has it.
type tableState struct {
	table     Table
	oid       uint32 // 0: there is no such table
	kind      byte   // pg_class.relkind
	unlogged  bool   // or temporary: the log does not have its rows
	published bool   // by itself or through its schema or FOR ALL TABLES
	// underRoot: it is published through a partition root that nobody registered, whose
	// name its rows would carry.
	underRoot string
	filtered  bool // the publication has a row filter on it
	columns   bool // the publication has a column list for it
	children  bool // it has partitions or inheritance children, or once had some
}

// alone says that no other table can hold rows of this one.
func (t tableState) alone() bool { return t.kind == 'r' && !t.children }

// publicationState is the publication as the catalog has it.
type publicationState struct {
	exists  bool
	insert  bool // inserts are published
	more    bool // updates, deletes or truncates are, too
	viaRoot bool
	tables  []tableState
}

// missing lists the registered tables that are not published.
func (p publicationState) missing() []Table {
	var tables []Table
	for _, t := range p.tables {
		if !t.published {
			tables = append(tables, t.table)
		}
	}
	return tables
}

// unrooted lists the registered tables whose rows are announced under the names of
// partitions: of a partition that is gone when its rows are read, nobody can tell
// any more whose it was (B33).
func (p publicationState) unrooted() []Table {
	var tables []Table
	for _, t := range p.tables {
		if t.kind == 'p' && !p.viaRoot {
			tables = append(tables, t.table)
		}
	}
	return tables
}

// missed says what the log may lack because the publication was as it was.
func (p publicationState) missed(name string) string {
	if len(p.missing()) > 0 || !p.insert {
		return fmt.Sprintf(notCarried, name)
	}
	return fmt.Sprintf("publication %q announced rows under the names of partitions for a while, so rows of partitions that are gone were not recognised", name)
}

const notCarried = "publication %q did not carry the event table for a while, so the log has no rows of that time"

// drift lists what differs from what this package would have created and can be
// lived with.
func (p publicationState) drift() []string {
	var all []string
	if p.more {
		all = append(all, "publishes more than inserts, which costs time and is thrown away")
	}
	for _, t := range p.tables {
		if t.filtered {
			all = append(all, fmt.Sprintf("has a row filter on %s: rows it hides are found by the poller only", t.table))
		}
		if t.columns {
			all = append(all, fmt.Sprintf("has a column list for %s", t.table))
		}
	}
	return all
}

// inspectPublication reads the publication and the registered tables.
func (c *session) inspectPublication(ctx context.Context, name string, tables []Table) (publicationState, error) {
	var p publicationState
	rows, err := c.query(ctx, `SELECT pubinsert, pubupdate OR pubdelete OR pubtruncate, pubviaroot
		FROM pg_publication WHERE pubname = `+quoteLiteral(name))
	if err != nil {
		return p, fmt.Errorf("read publication %q: %w", name, err)
	}
	if len(rows) == 1 && len(rows[0]) == 3 {
		p.exists = true
		p.insert, p.more, p.viaRoot = rows[0][0] == "t", rows[0][1] == "t", rows[0][2] == "t"
	}
	rows, err = c.query(ctx, inspectTables(name, tables))
	if err != nil {
		return p, fmt.Errorf("read the tables of publication %q: %w", name, err)
	}
	for _, row := range rows {
		if len(row) != 10 {
			return p, fmt.Errorf("the server answered with %d columns, want 10", len(row))
		}
		oid, err := strconv.ParseUint(row[2], 10, 32)
		if err != nil {
			return p, fmt.Errorf("OID of %s.%s: %w", row[0], row[1], err)
		}
		t := tableState{
			table:     Table{Schema: row[0], Name: row[1]},
			oid:       uint32(oid),
			unlogged:  row[4] == "t",
			published: row[5] == "t",
			underRoot: row[6],
			filtered:  row[7] == "t",
			columns:   row[8] == "t",
			children:  row[9] == "t",
		}
		if row[3] != "" {
			t.kind = row[3][0]
		}
		p.tables = append(p.tables, t)
	}
	return p, nil
}

// inspectTables asks, for each table, how the publication reaches it.
func inspectTables(publication string, tables []Table) string {
	values := make([]string, len(tables))
	for i, t := range tables {
		values[i] = "(" + quoteLiteral(t.Schema) + ", " + quoteLiteral(t.Name) + ")"
	}
	return `
SELECT w.nspname, w.relname, coalesce(c.oid, 0), coalesce(c.relkind::text, ''), coalesce(c.relpersistence <> 'p', false),
       coalesce(p.puballtables OR own.prrelid IS NOT NULL OR up.name IS NOT NULL OR EXISTS (
           SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace), false),
       coalesce(CASE WHEN p.pubviaroot THEN up.name END, ''),
       own.prqual IS NOT NULL, own.prattrs IS NOT NULL, coalesce(c.relhassubclass, false)
FROM (VALUES ` + strings.Join(values, ", ") + `) w(nspname, relname)
LEFT JOIN pg_namespace n ON n.nspname = w.nspname
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
LEFT JOIN pg_publication p ON p.pubname = ` + quoteLiteral(publication) + `
LEFT JOIN pg_publication_rel own ON own.prpubid = p.oid AND own.prrelid = c.oid
LEFT JOIN LATERAL (
    SELECT an.nspname || '.' || a.relname AS name
    FROM pg_partition_ancestors(c.oid) WITH ORDINALITY r(relid, level)
    JOIN pg_class a ON a.oid = r.relid
    JOIN pg_namespace an ON an.oid = a.relnamespace
    WHERE r.relid <> c.oid AND (p.puballtables
       OR EXISTS (SELECT FROM pg_publication_rel x WHERE x.prpubid = p.oid AND x.prrelid = a.oid)
       OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = a.relnamespace))
    ORDER BY r.level DESC LIMIT 1) up ON true
ORDER BY w.nspname, w.relname`
}

// ensurePublication compares the publication with the configuration and, when
// allowed, makes it fit. What was missing until now, the log does not have: that
// is remembered, so that it becomes a gap.
func (s *Source) ensurePublication(ctx context.Context, c *session, slotExists bool) (publicationState, error) {
	// Another replica may do the same at the same time, so what failed because it
	// is there already is looked at again, a few times.
	for range 5 {
		p, err := c.inspectPublication(ctx, s.cfg.Publication, s.cfg.Tables)
		if err != nil {
			return p, err
		}
		if err = s.checkTables(p); err != nil {
			return p, err
		}
		statement, why := s.cfg.publicationFix(p)
		if statement == "" {
			return p, nil
		}
		if !s.cfg.Create || p.exists && !p.insert {
			// One that leaves out inserts was made for something else, so it is not
			// changed even when it might be.
			return p, permanent(gapPublication, why, statement)
		}
		_, err = c.query(ctx, statement)
		switch state := sqlState(err); {
		case err == nil:
			s.log.Info("changed the publication", slog.String("publication", s.cfg.Publication), slog.String("because", why.Error()))
			if slotExists && p.exists {
				s.memory.mended = p.missed(s.cfg.Publication)
			} else if slotExists {
				s.memory.broken = gapPublication
			}
		case state == stateDuplicateObject, state == stateUniqueViolation:
		case state == statePrivilege:
			return p, permanent(reasonPrivilege, fmt.Errorf("%w, and this role may not do it: %w", why, err),
				"as the owner of the publication and of the tables: "+statement)
		default:
			return p, fmt.Errorf("%s: %w", statement, err)
		}
	}
	return publicationState{}, fmt.Errorf("publication %q keeps changing", s.cfg.Publication)
}

// checkTables refuses tables that no publication can carry.
func (s *Source) checkTables(p publicationState) error {
	for _, t := range p.tables {
		switch {
		case t.oid == 0:
			return permanent(reasonTable, fmt.Errorf("table %s does not exist", t.table),
				"create it (cdc-dispatcher migrate up), or correct its name in the configuration")
		case t.kind != 'r' && t.kind != 'p':
			return permanent(reasonTable, fmt.Errorf("%s is not a table", t.table), "name the table behind it")
		case t.unlogged:
			return permanent(reasonTable, fmt.Errorf("table %s is unlogged or temporary, so the log has no rows of it", t.table),
				fmt.Sprintf("ALTER TABLE %s SET LOGGED", t.table.quoted()))
		case t.underRoot != "" && !slices.ContainsFunc(s.cfg.Tables, func(o Table) bool { return o.String() == t.underRoot }):
			return permanent(reasonTable, fmt.Errorf("table %s is a partition that is published under the name of its root", t.table),
				"register "+t.underRoot+" instead")
		}
	}
	return nil
}

// fits says that the publication and the tables still are what a stream began
// with. A table that was dropped and made anew is another one: the publication
// lost it.
func (s *Source) fits(p publicationState, tables []tableState) bool {
	if statement, _ := s.cfg.publicationFix(p); statement != "" || s.checkTables(p) != nil {
		return false
	}
	return slices.EqualFunc(p.tables, tables, func(a, b tableState) bool { return a.table == b.table && a.oid == b.oid })
}

// publicationFix returns the statement that makes the publication fit, and why
// it is needed; "" when it fits.
func (c Config) publicationFix(p publicationState) (statement string, why error) {
	name := quoteIdent(c.Publication)
	switch missing, unrooted := p.missing(), p.unrooted(); {
	case !p.exists:
		return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true)",
			name, quotedList(c.Tables)), fmt.Errorf("publication %q does not exist", c.Publication)
	case !p.insert:
		return fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert')", name),
			fmt.Errorf("publication %q does not publish inserts", c.Publication)
	case len(missing) > 0:
		return fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", name, quotedList(missing)),
			fmt.Errorf("publication %q lacks %s", c.Publication, quotedList(missing))
	case len(unrooted) > 0:
		return fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true)", name),
			fmt.Errorf("publication %q announces the rows of %s under the names of its partitions", c.Publication, quotedList(unrooted))
	}
	return "", nil
}

func (t Table) quoted() string { return quoteIdent(t.Schema) + "." + quoteIdent(t.Name) }

func quotedList(tables []Table) string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.quoted()
	}
	return strings.Join(names, ", ")
}

// descendants finds the partitions and inheritance children of the registered
// tables, and the tables themselves, by OID.
func (c *session) descendants(ctx context.Context, tables []tableState) (map[uint32]Table, error) {
	byOID := make(map[uint32]Table, len(tables))
	seeds := make([]string, len(tables))
	for i, t := range tables {
		byOID[t.oid] = t.table
		seeds[i] = fmt.Sprintf("(%d::oid)", t.oid)
	}
	rows, err := c.query(ctx, `
WITH RECURSIVE tree(oid, root) AS (
    SELECT oid, oid FROM (VALUES `+strings.Join(seeds, ", ")+`) seed(oid)
    UNION SELECT i.inhrelid, tree.root FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid)
SELECT oid, root FROM tree WHERE oid <> root`)
	if err != nil {
		return nil, fmt.Errorf("read the partitions: %w", err)
	}
	roots := make(map[uint32]Table, len(rows)+len(byOID))
	for _, row := range rows {
		oid, err := strconv.ParseUint(row[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("OID of a partition: %w", err)
		}
		root, err := strconv.ParseUint(row[1], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("OID of a partition's root: %w", err)
		}
		roots[uint32(oid)] = byOID[uint32(root)]
	}
	for oid, t := range byOID { // a registered child counts as itself
		roots[oid] = t
	}
	return roots, nil
}

// columns reads the columns of the registered tables, in the order of a row in the
// log. A table that ever lost a column is left out: which columns its older rows
// have cannot be told from their number. Of any other, a row with as many columns has the same.
func (c *session) columns(ctx context.Context, tables []tableState) (map[uint32][]cdc.Column, error) {
	oids := make([]string, len(tables))
	for i, t := range tables {
		oids[i] = strconv.FormatUint(uint64(t.oid), 10)
	}
	rows, err := c.query(ctx, `SELECT attrelid, attname, atttypid FROM pg_attribute a
WHERE attrelid IN (`+strings.Join(oids, ", ")+`) AND attnum > 0 AND attgenerated = ''
  AND NOT EXISTS (SELECT FROM pg_attribute d WHERE d.attrelid = a.attrelid AND d.attnum > 0 AND d.attisdropped)
ORDER BY attrelid, attnum`)
	if err != nil {
		return nil, fmt.Errorf("read the columns: %w", err)
	}
	all := make(map[uint32][]cdc.Column, len(tables))
	for _, row := range rows {
		oid, err := strconv.ParseUint(row[0], 10, 32)
		typ, err1 := strconv.ParseUint(row[2], 10, 32)
		if err := errors.Join(err, err1); err != nil {
			return nil, fmt.Errorf("OIDs of column %s: %w", row[1], err)
		}
		all[uint32(oid)] = append(all[uint32(oid)], cdc.Column{Name: row[1], Type: uint32(typ)})
	}
	return all, nil
}

// awaitVisible waits until a transaction that is committed in the log is over for
// every session. It holds its own transaction id locked until then.
func (c *session) awaitVisible(ctx context.Context, xid uint32) error {
	for {
		rows, err := c.query(ctx, fmt.Sprintf(
			"SELECT FROM pg_locks WHERE locktype = 'transactionid' AND transactionid = '%d'::xid AND granted", xid))
		if err != nil {
			return fmt.Errorf("wait for transaction %d: %w", xid, err)
		}
		if len(rows) == 0 {
			return nil
		}
		if err := sleep(ctx, visiblePoll); err != nil {
			return fmt.Errorf("transaction %d is in the log and does not become visible: %w", xid, err)
		}
	}
}

// visiblePoll is how often a transaction that is just ending is looked at.
const visiblePoll = 10 * time.Millisecond

// whereabouts is what the catalog knows of a table of the log.
type whereabouts struct {
	// root is the registered table that it belongs to, when found.
	root  Table
	found bool
	// lost says why its rows may have been those of a registered table and nobody can
	// tell; empty when it is found, or is surely somebody else's.
	lost string
}

// rootOf finds the registered table that the table with this OID is now a
// partition or an inheritance child of.
//
// The log brings rows of tables that are published, and of their partitions. A table
// that is neither now was one of these when its rows were written. Unless
// no registered table ever had other tables below it, it may have been below one.
func (c *session) rootOf(ctx context.Context, oid uint32, publication string, tables []Table) (whereabouts, error) {
	rows, err := c.query(ctx, fmt.Sprintf(`
WITH RECURSIVE up(oid, level) AS (
    SELECT %[1]d::oid, 0 UNION SELECT i.inhparent, up.level + 1 FROM pg_inherits i JOIN up ON i.inhrelid = up.oid)
SELECT n.nspname, c.relname, p.oid IS NOT NULL AND (p.puballtables
           OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
           OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace))
FROM up JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_publication p ON p.pubname = %[2]s
ORDER BY up.level`, oid, quoteLiteral(publication)))
	if err != nil {
		return whereabouts{}, fmt.Errorf("look up table %d: %w", oid, err)
	}
	published := false
	for _, row := range rows {
		if t := (Table{Schema: row[0], Name: row[1]}); slices.Contains(tables, t) {
			return whereabouts{root: t, found: true}, nil
		}
		published = published || row[2] == "t"
	}
	if published {
		return whereabouts{}, nil
	}
	// Asked only now, so that a table that came below one of ours since then counts.
	p, err := c.inspectPublication(ctx, publication, tables)
	if err != nil {
		return whereabouts{}, err
	}
	switch {
	case allAlone(p.tables):
		return whereabouts{}, nil
	case len(rows) == 0:
		return whereabouts{lost: "which no longer exists"}, nil
	}
	return whereabouts{lost: "which is not below a registered table any more"}, nil
}

// allAlone says that rows of registered tables come under the tables' own names only.
func allAlone(tables []tableState) bool {
	return !slices.ContainsFunc(tables, func(t tableState) bool { return !t.alone() })
}
