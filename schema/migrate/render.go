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

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

//go:embed postgres/*.sql mysql/*.sql
var templates embed.FS

// Options say what is migrated.
type Options struct {
	// Dialect is the SQL that [Print] writes. Default [DialectPostgres]. A Migrator knows its own.
	Dialect Dialect
	// Schema is where our tables live: a schema, or a database of MySQL and MariaDB.
	// Default [schema.DefaultSchema].
	Schema string
	// Table is the event table. The zero value is the product's own, in Schema. Any
	// other one belongs to the user: it is neither created nor touched.
	Table schema.Table
}

func (o Options) withDefaults() Options {
	if o.Dialect == "" {
		o.Dialect = DialectPostgres
	}
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
	switch o.Dialect {
	case DialectPostgres, DialectMySQL, DialectMariaDB:
	default:
		return fmt.Errorf("%q is not a dialect: use postgres, mysql or mariadb", o.Dialect)
	}
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

// render fills the templates of one folder, in order.
func render(folder string, data any) ([]script, error) {
	t, err := template.ParseFS(templates, folder+"/*.sql")
	if err != nil {
		return nil, fmt.Errorf("parse migrations: %w", err)
	}
	files, err := fs.Glob(templates, folder+"/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
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
		if err := t.ExecuteTemplate(&text, name, data); err != nil {
			return nil, fmt.Errorf("render migration %s: %w", name, err)
		}
		scripts[i] = script{version: version, name: name, text: text.String()}
	}
	return scripts, nil
}

// Print returns all migrations as one SQL script, without a connection. It may be run with
// psql, mysql or mariadb as it is, and again: what is applied changes nothing. It also fills the version table, so that a
// later Up finds nothing to do. psql stops at the first error, and the step that failed does not count as applied. Whether our own
// event table is partitioned cannot be known without a connection; beside such a table the script stops at its index,
// which only [Migrator.Up] builds.
func Print(o Options) (string, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return "", err
	}
	var (
		scripts []script
		err     error
		p       printed
	)
	if o.Dialect == DialectPostgres {
		scripts, err = renderPostgres(o, false)
		p = printedPostgres(o)
	} else {
		scripts, err = renderMySQL(o, false)
		p = printedMySQL(o)
	}
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- cdc-dispatcher: tables in schema %s.\n%s", o.Schema, p.head)
	for _, s := range scripts {
		var begin, end string
		if s.inTransaction() {
			begin, end = "BEGIN;\n", "COMMIT;\n"
		}
		up, _, _ := strings.Cut(s.text, "-- +goose Down")
		fmt.Fprintf(&b, "\n-- %s\n%s%s", s.name, p.before(s.version), begin)
		for line := range strings.Lines(up) {
			if !strings.HasPrefix(line, "-- +goose") {
				b.WriteString(line)
			}
		}
		fmt.Fprintf(&b, "%s;\n%s%s", p.insertSQL(strconv.FormatInt(s.version, 10)), end, p.after)
	}
	return b.String(), nil
}

// printed is what a dialect puts around the steps of a script.
type printed struct {
	head      string
	before    func(version int64) string
	after     string
	insertSQL func(value string) string
}
