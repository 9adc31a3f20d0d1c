package migrate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// mysqlTableOptions are those of all tables that we create. A binary collation, because event
// ids, handler names and types that the code tells apart must not be one to a unique key.
const mysqlTableOptions = "ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

// mysqlData is what the templates of MySQL and MariaDB see. Its methods write statements that do
// nothing when they have been run before: MySQL has no IF NOT EXISTS for columns and
// indexes, so the statement is chosen on the server and run as a prepared one.
type mysqlData struct {
	schema string
	// Events says that the event table is ours.
	Events bool
	// UUID is the type of ids.
	UUID string
	// AddedJSON is the type of a JSON column that is added to a table with rows. MariaDB's
	// JSON is this text with a check, and a check cannot be added without copying.
	AddedJSON string
}

func renderMySQL(o Options, withoutUUID bool) ([]script, error) {
	d := mysqlData{
		schema:    o.Schema,
		Events:    o.ownEvents(),
		UUID:      "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin",
		AddedJSON: "JSON",
	}
	if o.Dialect == DialectMariaDB {
		d.AddedJSON = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
		if !withoutUUID {
			d.UUID = "UUID"
		}
	}
	return render("mysql", d)
}

// Schema is the database, quoted as an identifier.
func (d mysqlData) Schema() string { return quoteName(d.schema) }

// TableOptions end each CREATE TABLE.
func (mysqlData) TableOptions() string { return mysqlTableOptions }

// AddColumns adds those columns, each "name type", that a table lacks, in one statement and
// without touching a row.
func (d mysqlData) AddColumns(table string, columns ...string) string {
	var parts []string
	for _, c := range columns {
		name, _, _ := strings.Cut(c, " ")
		parts = append(parts, d.unless(d.column(table, name), "ADD COLUMN "+c))
	}
	return d.alter(table, parts, ", ALGORITHM=INSTANT")
}

// DropColumns drops those columns that a table has.
func (d mysqlData) DropColumns(table string, columns ...string) string {
	var parts []string
	for _, name := range columns {
		parts = append(parts, d.when(d.column(table, name), "DROP COLUMN "+name))
	}
	return d.alter(table, parts, "")
}

// AddIndex builds an index that a table lacks, while others write.
func (d mysqlData) AddIndex(table, name, on string) string {
	part := d.unless(d.index(table, name), "ADD INDEX "+name+" ("+on+")")
	return d.alter(table, []string{part}, ", ALGORITHM=INPLACE, LOCK=NONE")
}

// DropIndex drops an index that a table has.
func (d mysqlData) DropIndex(table, name string) string {
	part := d.when(d.index(table, name), "DROP INDEX "+name)
	return d.alter(table, []string{part}, "")
}

// alter runs those parts of an ALTER TABLE that are not null.
func (d mysqlData) alter(table string, parts []string, suffix string) string {
	return fmt.Sprintf(`SET @cdc_ddl = CONCAT_WS(', ',
    %s);
SET @cdc_ddl = IF(@cdc_ddl = '', 'DO 0', CONCAT(%s, @cdc_ddl, '%s'));
PREPARE cdc_ddl FROM @cdc_ddl;
EXECUTE cdc_ddl;
DEALLOCATE PREPARE cdc_ddl;`,
		strings.Join(parts, ",\n    "), quoteString("ALTER TABLE "+d.Schema()+"."+table+" "), suffix)
}

func (mysqlData) when(exists, part string) string {
	return fmt.Sprintf("IF(EXISTS (%s), '%s', NULL)", exists, part)
}

func (mysqlData) unless(exists, part string) string {
	return fmt.Sprintf("IF(EXISTS (%s), NULL, '%s')", exists, part)
}

func (d mysqlData) column(table, name string) string {
	return d.inCatalog("columns", table, "column_name", name)
}

func (d mysqlData) index(table, name string) string {
	return d.inCatalog("statistics", table, "index_name", name)
}

func (d mysqlData) inCatalog(view, table, column, name string) string {
	return fmt.Sprintf("SELECT 1 FROM information_schema.%s WHERE table_schema = %s AND table_name = '%s' AND %s = '%s'",
		view, quoteString(d.schema), table, column, name)
}

// lockName is a name for GET_LOCK, which takes 64 characters and does not tell capitals apart.
func lockName(purpose, schemaName string) string {
	sum := sha256.Sum256([]byte(schemaName))
	return "cdc-dispatcher." + purpose + "." + hex.EncodeToString(sum[:12])
}

// quoteName quotes an identifier, in any sql_mode.
func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// quoteString is a text literal that means the same in any sql_mode: whether a backslash
// escapes depends on it.
func quoteString(s string) string {
	if strings.Contains(s, `\`) {
		return fmt.Sprintf("CONVERT(X'%x' USING utf8mb4)", s)
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

// printedMySQL: mysql and mariadb stop at the first error of a script by themselves, and each statement may be run twice.
func printedMySQL(o Options) printed {
	v := mysqlVersions{schema: o.Schema}
	return printed{
		head:      v.createSchemaSQL() + ";\n\n" + v.createSQL() + ";\n",
		before:    func(int64) string { return "" },
		insertSQL: v.insertSQL,
	}
}
