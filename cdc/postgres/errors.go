package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// Reasons of errors and of gaps: short codes for metrics and logs.
const (
	reasonConfig      = "config"
	reasonAuth        = "auth"
	reasonTLS         = "tls"
	reasonDatabase    = "database_missing"
	reasonPooler      = "pooler"
	reasonPrivilege   = "privilege"
	reasonReplication = "replication_privilege"
	reasonWALLevel    = "wal_level"
	reasonVersion     = "server_version"
	reasonRecovery    = "in_recovery"
	reasonTable       = "table"
	reasonSlot        = "slot"
	reasonPublication = "publication"
	reasonRecall      = "recall"
	reasonNoSlotFree  = "no_slot_free"
	reasonConnections = "too_many_connections"
	reasonLock        = "lock"
	reasonServerDown  = "server_down"
	reasonStalled     = "stalled"
	reasonConnection  = "connection"
	reasonProtocol    = "protocol"
	reasonOther       = "other"

	// The reasons of gaps.
	gapSlotMissing      = "slot_missing"
	gapSlotLost         = "slot_lost"
	gapSlotMoved        = "slot_moved"
	gapPublication      = "publication_missing"
	gapPublicationTable = "publication_table"
	gapServerChanged    = "server_changed"
	gapDecode           = "decode"
	gapTableGone        = "table_gone"
)

// SQLSTATEs that mean something here. Errors are told apart by these and by
// where they happened, never by their text, which differs between versions and
// languages.
const (
	stateInvalidAuth        = "28000"
	stateInvalidPassword    = "28P01"
	stateNoDatabase         = "3D000"
	stateProtocolViolation  = "08P01"
	statePrivilege          = "42501"
	stateTooManyConnections = "53300"
	stateLimitExceeded      = "53400"
	stateNotReady           = "55000"
	stateInUse              = "55006"
	stateLockTimeout        = "55P03"
	stateAdminShutdown      = "57P01"
	stateCrashShutdown      = "57P02"
	stateCannotConnect      = "57P03"
	stateUndefinedObject    = "42704"
	stateDuplicateObject    = "42710"
	stateUniqueViolation    = "23505"
	stateUndefinedFile      = "58P01"
)

// Why one life of a connection ended, beside errors of the server and network.
var (
	errServerDone     = errors.New("the server ended the stream")
	errServerStopping = errors.New("the server is shutting down")
	errStalled        = errors.New("nothing was received for too long")
	errRecheck        = errors.New("the publication or a table changed")
	errUnanswered     = errors.New("the side connection does not answer")
	errPublication    = errors.New("the publication does not exist at this place in the log")
)

// sqlState returns the SQLSTATE in err, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
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

// classifyConnect sorts an error of making a connection.
func classifyConnect(err error, cfg *pgconn.Config) error {
	err = fmt.Errorf("connect: %w", err)
	switch sqlState(err) {
	case stateInvalidAuth, stateInvalidPassword:
		return permanent(reasonAuth, err, fmt.Sprintf(
			"check the user and password of the DSN, and that pg_hba.conf lets user %q reach database %q", cfg.User, cfg.Database))
	case stateNoDatabase:
		return permanent(reasonDatabase, err, "CREATE DATABASE "+quoteIdent(cfg.Database))
	case statePrivilege:
		// Either right may be missing; the code is the same.
		return permanent(reasonReplication, err, fmt.Sprintf(
			"ALTER ROLE %s REPLICATION  (on Amazon RDS: GRANT rds_replication TO %[1]s); GRANT CONNECT ON DATABASE %[2]s TO %[1]s",
			quoteIdent(cfg.User), quoteIdent(cfg.Database)))
	case stateProtocolViolation:
		return permanent(reasonPooler, err, "point the DSN at the server itself: poolers do not carry replication connections")
	case stateTooManyConnections:
		return retryable(reasonConnections, err, "raise max_wal_senders (and max_connections) and restart the server")
	case stateAdminShutdown, stateCrashShutdown, stateCannotConnect:
		return retryable(reasonServerDown, err, "")
	}
	if certificate := new(tls.CertificateVerificationError); errors.As(err, &certificate) {
		return permanent(reasonTLS, err, "set sslrootcert to the authority that signed the server's certificate, or choose another sslmode")
	}
	return retryable(reasonConnection, err, "")
}

// classifySetup sorts an error of the statements before the stream starts.
func classifySetup(err error) error {
	if s := new(cdc.SourceError); err == nil || errors.As(err, &s) {
		return err
	}
	switch sqlState(err) {
	case stateLimitExceeded:
		return permanent(reasonNoSlotFree, err, "raise max_replication_slots and restart the server, or drop a slot that nobody uses")
	case stateTooManyConnections:
		return retryable(reasonConnections, err, "raise max_wal_senders and restart the server")
	case statePrivilege:
		return permanent(reasonPrivilege, err, "grant the missing right to the role of the DSN")
	case stateLockTimeout:
		return retryable(reasonLock, err, "end the transaction that has been open for longest")
	}
	return classifyStream(err)
}

// classifyStream sorts the end of a stream.
func classifyStream(err error) error {
	if s := new(cdc.SourceError); err == nil || errors.As(err, &s) {
		return err
	}
	switch sqlState(err) {
	case stateAdminShutdown, stateCrashShutdown, stateCannotConnect:
		return retryable(reasonServerDown, err, "")
	case stateUndefinedObject:
		return retryable(reasonPublication, err, "")
	case "":
	default:
		return retryable(reasonOther, err, "")
	}
	switch {
	case errors.Is(err, errRecheck), errors.Is(err, errPublication):
		return retryable(reasonPublication, err, "")
	case errors.Is(err, errServerDone), errors.Is(err, errServerStopping):
		return retryable(reasonServerDown, err, "")
	case errors.Is(err, errStalled):
		return retryable(reasonStalled, err, "")
	case errors.Is(err, context.Canceled):
		return err
	}
	return retryable(reasonConnection, err, "")
}
