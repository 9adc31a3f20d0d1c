package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// Reasons of errors and of gaps: short codes for metrics and logs.
const (
	reasonConfig      = "config"
	reasonAuth        = "auth"
	reasonTLS         = "tls"
	reasonDatabase    = "database_missing"
	reasonProxy       = "proxy"
	reasonPrivilege   = "privilege"
	reasonReplication = "replication_privilege"
	reasonBinlog      = "log_bin"
	reasonFormat      = "binlog_format"
	reasonVersion     = "server_version"
	reasonTable       = "table"
	reasonCharset     = "charset"
	reasonConnections = "too_many_connections"
	reasonServerID    = "server_id"
	reasonServerDown  = "server_down"
	reasonStalled     = "stalled"
	reasonConnection  = "connection"
	reasonRefused     = "log_refused"
	reasonDecode      = "decode"
	reasonSettings    = "settings_changed"
	reasonTenure      = "tenure"
	reasonOther       = "other"

	// The reasons of gaps.
	gapPurged        = "purged"
	gapAhead         = "ahead_of_source"
	gapServerChanged = "server_changed"
	gapModeChanged   = "mode_changed"
	gapPosition      = "position_unreadable"
	gapRefused       = "log_refused"
	gapDecode        = "decode"
	gapIncident      = "incident"

	// The reasons of sweeps.
	sweepStatement = "statement"
	sweepXA        = "xa"
	sweepRowImage  = "row_image"
	sweepColumns   = "columns"
	sweepLarge     = "large"
)

// Error numbers that mean something here. Errors are told apart by these and by
// where they happened.
const (
	errTooManyConnections = 1040
	errDBAccessDenied     = 1044
	errAccessDenied       = 1045
	errUnknownCommand     = 1047
	errBadDB              = 1049
	errServerShutdown     = 1053
	errParse              = 1064
	errTableDenied        = 1142
	errNotAllowed         = 1148
	errNetRead            = 1158
	errNetReadInterrupted = 1159
	errNetWrite           = 1160
	errNetWriteTimeout    = 1161
	errSpecificDenied     = 1227
	errNotSupported       = 1235
	errBinlogFatal        = 1236
	errConnectionKilled   = 1927
	errSecureTransport    = 3159
	errClientTimeout      = 4031
	errSameID             = 4052 // MariaDB
)

// Why one life of a connection ended, beside errors of the server and network.
var (
	errStalled  = errors.New("nothing was received for too long")
	errSettings = errors.New("settings of the server changed that the reader depends on")
	errTenure   = errors.New("this process is no longer the reader")
	errDecode   = errors.New("an event cannot be decoded")
)

// serverError returns the number and text of a server's error in err, or 0. Both
// drivers have a type of their own.
func serverError(err error) (number uint16, text string) {
	var sql *driver.MySQLError
	if errors.As(err, &sql) {
		return sql.Number, sql.Message
	}
	var log *gomysql.MyError
	if errors.As(err, &log) {
		return log.Code, log.Message
	}
	return 0, ""
}

// retryable is a failure that a new connection may mend. The hint is for the
// operator, should it go on.
func retryable(reason string, err error, hint string) error {
	return &cdc.SourceError{Err: err, Reason: reason, Hint: hint}
}

// permanent is a failure that lasts until somebody acts on the hint.
func permanent(reason string, err error, hint string) error {
	return &cdc.SourceError{Err: err, Reason: reason, Hint: hint, Permanent: true}
}

// reasonOf is the short code of err.
func reasonOf(err error) string {
	var s *cdc.SourceError
	if errors.As(err, &s) && s.Reason != "" {
		return s.Reason
	}
	return reasonOther
}

// account names the user of a connection, for hints.
func account(cfg *driver.Config) string { return "'" + cfg.User + "'@'%'" }

// classifySQL sorts an error of the plain SQL connection. what says in few words what
// was tried.
func classifySQL(what string, err error, cfg *driver.Config) error {
	if s := new(cdc.SourceError); err == nil || errors.As(err, &s) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	err = fmt.Errorf("%s: %w", what, err)
	switch number, _ := serverError(err); number {
	case 0:
	case errAccessDenied, errSecureTransport:
		return permanent(reasonAuth, err, fmt.Sprintf(
			"check user %q, its password, the hosts it may connect from, and whether it must use TLS", cfg.User))
	case errDBAccessDenied, errBadDB:
		return permanent(reasonDatabase, err, fmt.Sprintf("create database %q and let %s use it", cfg.DBName, account(cfg)))
	case errTableDenied:
		return permanent(reasonPrivilege, err, "GRANT SELECT on the event table TO "+account(cfg))
	case errSpecificDenied:
		return permanent(reasonPrivilege, err, "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO "+account(cfg))
	case errTooManyConnections:
		return retryable(reasonConnections, err, "raise max_connections")
	case errServerShutdown, errConnectionKilled, errClientTimeout:
		return retryable(reasonServerDown, err, "")
	default:
		return retryable(reasonOther, err, "")
	}
	return classifyNetwork(err)
}

// classifyStart sorts an error of opening the stream, after the SQL connection of the
// same account worked.
func classifyStart(err error, cfg *driver.Config) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	number, _ := serverError(err)
	switch number {
	case errAccessDenied, errSpecificDenied:
		return permanent(reasonReplication, fmt.Errorf("read the binlog: %w", scrub(err)),
			"GRANT REPLICATION SLAVE ON *.* TO "+account(cfg))
	case errUnknownCommand, errNotAllowed, errNotSupported:
		return permanent(reasonProxy, fmt.Errorf("read the binlog: %w", scrub(err)),
			"point the DSN at the server itself: proxies do not carry the binlog; without one, set the source to poll mode")
	}
	known := errors.Is(err, errStalled) || errors.Is(err, errTenure) || errors.Is(err, errSettings)
	if number == 0 && !known && errors.Is(scrub(err), errDecode) {
		return classifyNetwork(fmt.Errorf("open the binlog: %w", err)) // no row was read yet
	}
	return classifyStream(err)
}

// classifyStream sorts the end of a stream. Texts of the log's library never pass on
// as they are: they quote rows.
func classifyStream(err error) error {
	if s, large := new(cdc.SourceError), new(largeCommit); err == nil || errors.As(err, &s) || errors.As(err, &large) {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, errTenure):
		return retryable(reasonTenure, err, "")
	case errors.Is(err, errSettings):
		return retryable(reasonSettings, err, "")
	case errors.Is(err, errStalled):
		return retryable(reasonStalled, err, "")
	case errors.Is(err, errDecode):
		return retryable(reasonDecode, err, "")
	}
	number, text := serverError(err)
	switch number {
	case 0:
		if err = scrub(err); errors.Is(err, errDecode) {
			return retryable(reasonDecode, err, "")
		}
		return classifyNetwork(err)
	case errSameID:
		return duplicateID(err)
	case errBinlogFatal:
		if sameID(text) {
			return duplicateID(err)
		}
		return retryable(reasonRefused, scrub(err), "")
	case errSpecificDenied, errAccessDenied:
		return permanent(reasonReplication, scrub(err), "GRANT REPLICATION SLAVE ON *.* to the user of the DSN")
	case errTooManyConnections:
		return retryable(reasonConnections, scrub(err), "raise max_connections")
	case errServerShutdown, errConnectionKilled, errNetRead, errNetReadInterrupted, errNetWrite, errNetWriteTimeout, errClientTimeout:
		return retryable(reasonServerDown, scrub(err), "")
	}
	return retryable(reasonOther, scrub(err), "")
}

// sameID: MySQL evicted this reader in favour of a replica with the same UUID, for which it
// has no number of its own.
func sameID(text string) bool {
	return strings.Contains(text, "same server_uuid")
}

func duplicateID(err error) error {
	return retryable(reasonServerID, scrub(err),
		"another replica or reader uses the same server id: give each its own, or none so that one is chosen")
}

// classifyNetwork sorts what is not a server's error.
func classifyNetwork(err error) error {
	var timeout net.Error
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &certificate), errors.As(err, &authority):
		return permanent(reasonTLS, err, "give the authority that signed the server's certificate, or choose another tls mode")
	case errors.Is(err, driver.ErrNoTLS):
		return permanent(reasonTLS, err, "switch TLS on at the server, or choose tls=false")
	case errors.Is(err, driver.ErrNativePassword), errors.Is(err, driver.ErrOldPassword), errors.Is(err, driver.ErrCleartextPassword),
		errors.Is(err, driver.ErrUnknownPlugin):
		return permanent(reasonAuth, err, "let the user log in with caching_sha2_password, mysql_native_password or ed25519")
	case errors.As(err, &timeout) && timeout.Timeout():
		return retryable(reasonStalled, err, "")
	}
	return retryable(reasonConnection, err, "")
}

// scrub keeps of an error of the log's library what is safe to show: a server's number
// and text, and what kind of network error it was.
func scrub(err error) error {
	number, text := serverError(err)
	var operation *net.OpError
	switch {
	case number != 0:
		// Server errors about the binlog name files and positions. The last event that some
		// of them append is a position as well.
		return fmt.Errorf("the server says: %w", &driver.MySQLError{Number: number, Message: text})
	case errors.As(err, &operation):
		return operation
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, gomysql.ErrBadConn), errors.Is(err, net.ErrClosed):
		return errors.New("the connection was lost")
	}
	return errDecode
}
