package migrate

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// data is what PostgreSQL's templates see.
type data struct {
	// Schema is quoted as an identifier, SchemaText as a literal.
	Schema, SchemaText string
	// Events says that the event table is ours.
	Events bool
	// PartitionedEvents: its indexes cannot be built concurrently.
	PartitionedEvents bool
}

// index is what the template "index" sees.
type index struct {
	data
	Name, On     string
	Concurrently bool
}

// Index is called by the templates.
func (d data) Index(name, on string) index {
	partitioned := d.PartitionedEvents && strings.HasPrefix(on, "events ")
	return index{data: d, Name: name, On: on, Concurrently: !partitioned}
}

func renderPostgres(o Options, partitionedEvents bool) ([]script, error) {
	return render("postgres", data{
		Schema:            quoteIdent(o.Schema),
		SchemaText:        quoteText(o.Schema),
		Events:            o.ownEvents(),
		PartitionedEvents: partitionedEvents,
	})
}

// printedPostgres: psql goes on after an error unless it is told otherwise, and would record a step that failed. Having
// stopped, it must be able to begin again, although not every step can be run twice, and nobody may create a schema that
// exists without the right to create others.
func printedPostgres(o Options) printed {
	v := versionTable{schema: o.Schema}
	const end = "\\endif\n"
	unless := func(exists string) string {
		return "SELECT NOT EXISTS (" + exists + ") AS missing \\gset\n\\if :missing\n"
	}
	head := "-- For psql. Stops at the first error, and may be run again.\n"
	if o.ownEvents() {
		head += "-- If the table events is partitioned, use \"cdc-dispatcher migrate up\": its indexes cannot be built concurrently.\n"
	}
	head += "\\set ON_ERROR_STOP on\n\n" + unless("SELECT FROM pg_catalog.pg_namespace WHERE nspname = "+quoteText(o.Schema)) +
		v.createSchemaSQL() + ";\n" + end + v.createSQL() + ";\n"
	return printed{
		head: head,
		before: func(version int64) string {
			return unless("SELECT FROM " + v.table() + " WHERE version = " + strconv.FormatInt(version, 10))
		},
		after:     end,
		insertSQL: v.insertSQL,
	}
}

func quoteIdent(name string) string { return pgx.Identifier{name}.Sanitize() }

func quoteText(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
