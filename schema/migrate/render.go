package migrate

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

//go:embed postgres/*.sql
var templates embed.FS

// Options say what is migrated.
type Options struct {
	// Schema is where our tables live. Default [schema.DefaultSchema].
	Schema string
	// Table is the event table. The zero value is the product's own, in Schema. Any
	// other one belongs to the user: it is neither created nor touched.
	Table schema.Table
}

func (o Options) withDefaults() Options {
	if o.Schema == "" {
		o.Schema = schema.DefaultSchema
	}
	if o.Table.Name == "" {
		o.Table = schema.Eventlog(o.Schema)
	}
	return o
}

// ownEvents says whether the event table is the product's own.
func (o Options) ownEvents() bool {
	return o.Table.Preset == schema.PresetEventlog && o.Table.QualifiedName() == schema.Eventlog(o.Schema).QualifiedName()
}

func (o Options) validate() error {
	if err := o.Table.Validate(); err != nil {
		return err
	}
	// The same rules hold for the name of our schema.
	t := schema.Eventlog(o.Schema)
	return t.Validate()
}

// script is one migration, rendered.
type script struct {
	version int64
	// name is the file's name without its folder.
	name string
	// text is SQL with goose's annotations.
	text string
}

// inTransaction says whether the script is one transaction.
func (s script) inTransaction() bool { return !strings.HasPrefix(s.text, "-- +goose NO TRANSACTION") }

// data is what the templates see.
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

// render returns all migrations in order.
func render(o Options, partitionedEvents bool) ([]script, error) {
	t, err := template.ParseFS(templates, "postgres/*.sql")
	if err != nil {
		return nil, fmt.Errorf("parse migrations: %w", err)
	}
	files, err := fs.Glob(templates, "postgres/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	d := data{
		Schema:            quoteIdent(o.Schema),
		SchemaText:        quoteText(o.Schema),
		Events:            o.ownEvents(),
		PartitionedEvents: partitionedEvents,
	}
	scripts := make([]script, len(files))
	for i, file := range files {
		name := path.Base(file)
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("migration %s has no number: %w", name, err)
		}
		var text bytes.Buffer
		if err := t.ExecuteTemplate(&text, name, d); err != nil {
			return nil, fmt.Errorf("render migration %s: %w", name, err)
		}
		scripts[i] = script{version: version, name: name, text: text.String()}
	}
	return scripts, nil
}

// Print returns all migrations as one SQL script, without a connection. It may be run with
// psql as it is. It also fills the version table, so that a later Up finds
// nothing to do.
func Print(o Options) (string, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return "", err
	}
	scripts, err := render(o, false)
	if err != nil {
		return "", err
	}
	v := versionTable{schema: o.Schema}
	var b strings.Builder
	fmt.Fprintf(&b, "-- cdc-dispatcher: tables in schema %s.\n", o.Schema)
	fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %s;\n\n%s;\n", quoteIdent(o.Schema), v.createSQL())
	for _, s := range scripts {
		up, _, _ := strings.Cut(s.text, "-- +goose Down")
		fmt.Fprintf(&b, "\n-- %s\n", s.name)
		if s.inTransaction() {
			b.WriteString("BEGIN;\n")
		}
		for line := range strings.Lines(up) {
			if !strings.HasPrefix(line, "-- +goose") {
				b.WriteString(line)
			}
		}
		fmt.Fprintf(&b, "%s;\n", v.insertSQL(strconv.FormatInt(s.version, 10)))
		if s.inTransaction() {
			b.WriteString("COMMIT;\n")
		}
	}
	return b.String(), nil
}

func quoteIdent(name string) string { return pgx.Identifier{name}.Sanitize() }

func quoteText(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
