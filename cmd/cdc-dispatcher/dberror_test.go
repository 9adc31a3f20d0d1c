package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestDatabaseErrorsSayWhatToDo: each kind of answer has its code, by SQLSTATE.
func TestDatabaseErrorsSayWhatToDo(t *testing.T) {
	for state, code := range map[string]string{
		"28P01": codeAuth, "28000": codeAuth, "3D000": codeNoDatabase, "42501": codePrivilege, "3F000": codeNotMigrated,
		"42P01": codeNotMigrated, "42703": codeTable, "25006": codeReadOnly, "53300": codeBusy, "57P03": codeBusy, "XX000": codeDatabase,
	} {
		f := databaseFailure("orders", fmt.Errorf("claim: %w", &pgconn.PgError{Code: state, Message: "the server's words"}))
		if f == nil || f.code != code || f.exit != exitDatabase || f.try == "" ||
			!strings.HasPrefix(f.message, "source orders: ") || !strings.Contains(f.message, "the server's words (SQLSTATE "+state+")") {
			t.Errorf("%s: %+v", state, f)
		}
	}
	for number, code := range map[uint16]string{1045: codeAuth, 1290: codeReadOnly, 1792: codeReadOnly, 3024: codeBusy, 1969: codeBusy, 1040: codeBusy} {
		if f := databaseFailure("orders", &driver.MySQLError{Number: number}); f == nil || f.code != code || f.try == "" {
			t.Errorf("%d: %+v, want %s", number, f, code)
		}
	}
	hint := "Delete those deliveries first, or keep the column."
	if f := databaseFailure("orders", &pgconn.PgError{Code: "55006", Hint: hint}); f == nil || f.try != hint {
		t.Errorf("the server's hint is lost: %+v", f)
	}
	if f := databaseFailure("orders", errors.New("something else")); f != nil {
		t.Errorf("no error of a database: %+v", f)
	}
}

// TestConnectionErrorsHideTheLogin: what keeps us from connecting is told with the
// address, never with user or password.
func TestConnectionErrorsHideTheLogin(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := pgx.Connect(ctx, "postgres://app:hunter2@127.0.0.1:1/shop?sslmode=disable")
	f := databaseFailure("", err)
	if f == nil || f.code != codeUnreachable || f.message != "the database at 127.0.0.1:1 cannot be reached: connection refused" {
		t.Errorf("%+v", f)
	}
	for _, tt := range []struct {
		err  error
		code string
	}{
		{&net.DNSError{Err: "no such host", Name: "db.invalid"}, codeUnreachable},
		{fmt.Errorf("dial: %w", context.DeadlineExceeded), codeUnreachable},
		{&net.OpError{Op: "dial", Err: x509.UnknownAuthorityError{}}, codeTLS},
		{&net.OpError{Op: "dial", Err: io.ErrUnexpectedEOF}, codeUnreachable},
	} {
		if f := databaseFailure("orders", tt.err); f == nil || f.code != tt.code || f.try == "" {
			t.Errorf("%v: %+v", tt.err, f)
		}
	}
}

// TestSIGTERMStopsSoftly: what Kubernetes and systemd send is the same as Ctrl-C.
func TestSIGTERMStopsSoftly(t *testing.T) {
	dir := t.TempDir()
	bin := program(t, dir)
	address := freeAddress(t)
	file := filepath.Join(dir, "c.yaml")
	writeFile(t, file, "version: 1\nsources: [{name: shop, dsn: \"postgres://127.0.0.1:1/shop\"}]\nserver: {listen: \""+address+"\"}\n")
	cmd := exec.CommandContext(t.Context(), bin, "run", "-c", file)
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); probe(t.Context(), address, false) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("it does not live within a minute")
		}
		<-time.After(20 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
	if !strings.Contains(log.String(), `"signal":"terminated"`) || !strings.Contains(log.String(), `"msg":"stopped"`) {
		t.Errorf("log:\n%s", log.String())
	}
}
