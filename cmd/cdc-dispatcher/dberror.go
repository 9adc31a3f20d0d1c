package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// databaseFailure tells what an error of the database asks the operator to do,
// by its SQLSTATE or type. It is nil when err does not come from a database.
// source names the source, and may be empty.
func databaseFailure(source string, err error) *failure {
	if err == nil {
		return nil
	}
	f := sqlFailure(err)
	if f == nil {
		f = mysqlFailure(err)
	}
	if f == nil {
		f = connectionFailure(err)
	}
	if f == nil {
		return nil
	}
	f.exit, f.cause = exitDatabase, err
	if source != "" {
		f.message = "source " + source + ": " + f.message
	}
	return f
}

// sqlFailure explains an answer of the server.
func sqlFailure(err error) *failure {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	is := func(codes ...string) bool {
		for _, c := range codes {
			if pg.Code == c {
				return true
			}
		}
		return false
	}
	message := fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	switch {
	case strings.HasPrefix(pg.Code, "28"):
		return &failure{code: codeAuth, message: "the database refuses the login: " + message,
			try: "check user and password of the DSN, and pg_hba.conf on the server"}
	case is("3D000"):
		return &failure{code: codeNoDatabase, message: message, try: "check the database's name in the DSN, or create it"}
	case is("42501"):
		return &failure{code: codePrivilege, message: message, try: "cdc-dispatcher doctor, which prints the GRANT that is missing"}
	case is("3F000", "42P01"):
		return &failure{code: codeNotMigrated, message: message, try: "cdc-dispatcher migrate up"}
	case is("42703"):
		return &failure{code: codeTable, message: message, try: "cdc-dispatcher doctor, which compares the columns; or cdc-dispatcher migrate up"}
	case is("25006"):
		return &failure{code: codeReadOnly, message: message, try: "point the DSN at the primary, for example with target_session_attrs=read-write"}
	case is("53300", "57P01", "57P02", "57P03", "53400"):
		return &failure{code: codeBusy, message: message, try: "wait until the server accepts connections, or raise max_connections"}
	}
	f := &failure{code: codeDatabase, message: message, try: "cdc-dispatcher doctor"}
	if pg.Hint != "" {
		f.try = oneLine(pg.Hint)
	}
	return f
}

// connectionFailure explains why there was no answer.
func connectionFailure(err error) *failure {
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) && !isNetwork(err) && !isCertificate(err) {
		return nil
	}
	where := "the database"
	settings, encryption := "sslmode and sslrootcert of the DSN", "sslmode"
	if connect != nil {
		where = endpoint(connect.Config)
	} else {
		settings, encryption = "the tls settings of the source", "tls"
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Addr != nil {
			where = "the database at " + op.Addr.String()
		}
	}
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		dns       *net.DNSError
	)
	switch {
	case errors.As(err, &authority), errors.As(err, &host), errors.As(err, &invalid), errors.As(err, &record):
		return &failure{code: codeTLS, message: fmt.Sprintf("no encrypted connection to %s: %s", where, innermost(err)),
			try: "check " + settings}
	case errors.As(err, &dns):
		return &failure{code: codeUnreachable, message: fmt.Sprintf("no address is known for %s", where), try: "check the host in the DSN"}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{code: codeUnreachable, message: fmt.Sprintf("%s does not answer", where), try: "check host, port and firewall, and that the server runs"}
	}
	return &failure{code: codeUnreachable, message: fmt.Sprintf("%s cannot be reached: %s", where, innermost(err)),
		try: "check host, port, " + encryption + " and firewall, and that the server runs"}
}

func isCertificate(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

func isNetwork(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr)
}

// endpoint names where a connection was to go; never who with.
func endpoint(c *pgconn.Config) string {
	if c == nil {
		return "the database"
	}
	if strings.HasPrefix(c.Host, "/") {
		return "the database at " + c.Host
	}
	return fmt.Sprintf("the database at %s", net.JoinHostPort(c.Host, fmt.Sprint(c.Port)))
}

// innermost is the text of the cause, without what it was wrapped in.
func innermost(err error) string {
	for {
		switch x := err.(type) { //nolint:errorlint // walks the tree itself
		case interface{ Unwrap() error }:
			if inner := x.Unwrap(); inner != nil {
				err = inner
				continue
			}
		case interface{ Unwrap() []error }:
			if list := x.Unwrap(); len(list) > 0 {
				err = list[len(list)-1]
				continue
			}
		}
		return err.Error()
	}
}
