package config

import (
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// dsn decodes a connection string. Nothing of it is ever repeated: what a parser
// calls a bad port may be half of a password.
func (d *decoder) dsn(dst *string) func(*node, string) {
	return func(n *node, path string) {
		var text string
		before := len(d.problems)
		d.secret(&text)(n, path)
		if len(d.problems) > before || text == "" {
			return
		}
		if problem, try := checkDSN(text); problem != "" {
			d.report(CodeDSN, path, n.pos, try, "%s: %s", path, problem)
			return
		}
		*dst = text
	}
}

// WithoutPassword says whether a connection string can be shown: it surely holds no
// password.
func WithoutPassword(dsn string) bool { return harmlessDSN(dsn) }

// checkDSN says what is wrong with a connection string, without repeating it.
func checkDSN(dsn string) (problem, try string) {
	kind, ok := DatabaseOf(dsn)
	scheme, _, isURL := strings.Cut(dsn, "://")
	const forms = "write postgres://user@host:5432/database, mysql://user@host:3306/database or mariadb://…"
	switch {
	case !ok && isURL && strings.Trim(strings.ToLower(scheme), "abcdefghijklmnopqrstuvwxyz+") == "":
		return "this is not the address of a database that is supported", forms
	case !ok:
		return "this is not a connection string", forms + "; or: host=… user=… dbname=…; or: user@tcp(host:3306)/database"
	case kind.IsMySQL():
		return checkMySQLDSN(dsn)
	}
	if isURL {
		if _, err := url.Parse(dsn); err != nil {
			return "the address cannot be read; a password with special characters must be percent-encoded in it",
				"put the password into the key password: of the source, where it needs no encoding"
		}
	}
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return "the connection string cannot be read", "check its parameters: sslmode, port, connect_timeout, and that files such as sslrootcert exist"
	}
	for name := range cfg.RuntimeParams {
		if strings.HasPrefix(name, "pool_") {
			return "parameters that begin with pool_ are not for the server", "remove them, and set max_connections of the source"
		}
	}
	return "", ""
}
