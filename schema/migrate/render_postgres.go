package migrate

import (
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

func quoteIdent(name string) string { return pgx.Identifier{name}.Sanitize() }

func quoteText(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
