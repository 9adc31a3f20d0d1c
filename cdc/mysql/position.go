package mysql

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// mode is how positions are kept.
type mode string

// The modes are the beginnings of the text of a position.
const (
	modeGTID    mode = "mysql-gtid"   // MySQL: the set of all GTIDs that were executed
	modeMariaDB mode = "mariadb-gtid" // MariaDB: the last GTID of each domain
	modeFile    mode = "mysql-file"   // MySQL without GTIDs: a server, a file and an offset
)

// place is a position that was read: a place between two transactions. Places are
// compared by containment, never by arithmetic.
type place struct {
	mode    mode
	set     *gomysql.MysqlGTIDSet          // modeGTID
	domains map[uint32]gomysql.MariadbGTID // modeMariaDB
	// modeFile:
	server string // the server's UUID: a file is a file of one server
	file   string
	offset uint32
}

// position is the text that leaves this package:
//
//	mysql-gtid:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5
//	mariadb-gtid:0-1-270,5-1-3
//	mysql-file:3e11fa47-71ca-11e1-9e33-c80aa9429562/binlog.000003:1547
//
// The GTID forms may be empty after the colon: a fresh server.
func (p place) position() cdc.Position {
	return cdc.Position(string(p.mode) + ":" + p.detail())
}

// detail is the position in the server's own notation.
func (p place) detail() string {
	switch p.mode {
	case modeGTID:
		return p.set.String()
	case modeMariaDB:
		var text []byte // once for each transaction
		for i, domain := range slices.Sorted(maps.Keys(p.domains)) {
			if i > 0 {
				text = append(text, ',')
			}
			g := p.domains[domain]
			text = append(strconv.AppendUint(text, uint64(g.DomainID), 10), '-')
			text = append(strconv.AppendUint(text, uint64(g.ServerID), 10), '-')
			text = strconv.AppendUint(text, g.SequenceNumber, 10)
		}
		return string(text)
	}
	return p.server + "/" + p.file + ":" + strconv.FormatUint(uint64(p.offset), 10)
}

var errPosition = errors.New("not a position of this reader")

// parsePlace reads what position wrote.
func parsePlace(text cdc.Position) (place, error) {
	kind, detail, ok := strings.Cut(string(text), ":")
	if !ok {
		return place{}, errPosition
	}
	switch mode(kind) {
	case modeGTID:
		return parseGTIDSet(detail)
	case modeMariaDB:
		return parseDomains(detail)
	case modeFile:
		server, rest, ok1 := strings.Cut(detail, "/")
		at := strings.LastIndexByte(rest, ':')
		if !ok1 || at <= 0 || server == "" {
			return place{}, errPosition
		}
		offset, err := strconv.ParseUint(rest[at+1:], 10, 32)
		if err != nil {
			return place{}, errPosition
		}
		return place{mode: modeFile, server: server, file: rest[:at], offset: uint32(offset)}, nil
	}
	return place{}, errPosition
}

// parseGTIDSet reads a set of MySQL, such as gtid_executed, which has line breaks.
func parseGTIDSet(text string) (place, error) {
	set, err := gomysql.ParseMysqlGTIDSet(strings.ReplaceAll(text, "\n", ""))
	if err != nil {
		return place{}, errPosition
	}
	return place{mode: modeGTID, set: set.(*gomysql.MysqlGTIDSet)}, nil
}

// parseDomains reads a position of MariaDB, such as gtid_binlog_pos. Of a domain that is
// named twice the later one counts.
func parseDomains(text string) (place, error) {
	p := place{mode: modeMariaDB, domains: map[uint32]gomysql.MariadbGTID{}}
	if text == "" {
		return p, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		g, err := gomysql.ParseMariadbGTID(strings.TrimSpace(part))
		if err != nil || part == "" {
			return place{}, errPosition
		}
		if last, ok := p.domains[g.DomainID]; !ok || last.SequenceNumber <= g.SequenceNumber {
			p.domains[g.DomainID] = *g
		}
	}
	return p, nil
}

// clone is a copy that shares nothing.
func (p place) clone() place {
	if p.set != nil {
		p.set = p.set.Clone().(*gomysql.MysqlGTIDSet)
	}
	p.domains = maps.Clone(p.domains)
	return p
}

// contains says that everything before o is also before p. False when they cannot be
// compared.
func (p place) contains(o place) bool {
	if p.mode != o.mode {
		return false
	}
	switch p.mode {
	case modeGTID:
		return p.set.Contain(o.set)
	case modeMariaDB:
		for domain, theirs := range o.domains {
			ours, ok := p.domains[domain]
			if !ok || ours.SequenceNumber < theirs.SequenceNumber {
				return false
			}
		}
		return true
	}
	if p.server != o.server {
		return false
	}
	base, number := fileNumber(p.file)
	theirBase, theirs := fileNumber(o.file)
	return base == theirBase && (number > theirs || number == theirs && p.offset >= o.offset)
}

// fileNumber splits the number off the name of a binlog file. Numbers grow, also in
// length.
func fileNumber(file string) (base string, number uint64) {
	dot := strings.LastIndexByte(file, '.')
	number, err := strconv.ParseUint(file[dot+1:], 10, 64)
	if err != nil {
		return file, 0
	}
	return file[:dot+1], number
}

// gtid is the name of one transaction; the zero value means that it has none.
type gtid struct {
	sid     uuid.UUID // MySQL
	tag     gomysql.Tag
	number  int64
	mariadb gomysql.MariadbGTID
	flavor  mode
}

// String is the GTID as the server prints it.
func (g gtid) String() string {
	switch g.flavor {
	case modeGTID:
		if tag := g.tag.String(); tag != "" {
			return fmt.Sprintf("%s:%s:%d", g.sid, tag, g.number)
		}
		return fmt.Sprintf("%s:%d", g.sid, g.number)
	case modeMariaDB:
		return fmt.Sprintf("%d-%d-%d", g.mariadb.DomainID, g.mariadb.ServerID, g.mariadb.SequenceNumber)
	}
	return ""
}

// add moves the place past a transaction.
func (p *place) add(g gtid) {
	switch {
	case p.mode == modeGTID && g.flavor == modeGTID:
		p.set.AddGTIDWithTag(g.sid, g.tag, g.number)
	case p.mode == modeMariaDB && g.flavor == modeMariaDB:
		p.domains[g.mariadb.DomainID] = g.mariadb
	}
}
