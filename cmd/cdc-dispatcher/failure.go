package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
)

// The exit codes, for scripts.
const (
	exitOK       = 0
	exitFailed   = 1 // what was asked for did not work
	exitUsage    = 2 // the command line is wrong
	exitConfig   = 3 // the configuration file is wrong
	exitDatabase = 4 // the database cannot be reached, or is not ready
	exitCritical = 5 // a check failed
	exitWarning  = 6 // a check found something to look at
)

// The codes of failures. CD1… are problems of the configuration (package
// config), CD2… findings of the doctor.
const (
	codeUsage        = "CD3001" // the command line is wrong
	codeConfirm      = "CD3002" // a change that was not confirmed
	codeNotFound     = "CD3003" // no such event, delivery, handler or source
	codeExists       = "CD3004" // a file that would be overwritten
	codeInput        = "CD3005" // data that cannot be used
	codeFile         = "CD3006" // a file that cannot be read or written
	codeUnreachable  = "CD4001" // nothing answers at the database's address
	codeAuth         = "CD4002" // the database refuses the user or the password
	codeNoDatabase   = "CD4003" // the server has no such database
	codePrivilege    = "CD4004" // the user may not do it
	codeNotMigrated  = "CD4005" // our tables are missing, or older than this program
	codeBusy         = "CD4006" // the server is starting, stopping or full
	codeReadOnly     = "CD4007" // a standby, or a read-only database
	codeTLS          = "CD4008" // the encrypted connection could not be made
	codeTable        = "CD4009" // the event table is missing or has other columns
	codeDatabase     = "CD4010" // any other error of the database
	codeListen       = "CD5001" // the HTTP address cannot be used
	codeUnclean      = "CD5002" // a stop left something behind, which will be done again
	codeProbe        = "CD5003" // the health probe found a problem
	codeHurried      = "CD5004" // stopped by a second signal
	codeInterrupted  = "CD5005" // a person, or the service manager, ended it early
	codeLedger       = "CD5006" // what was delivered is not what was committed
	codeUnclassified = "CD5000" // anything else
)

// failure is how a command ends when it does not work: with a code, one sentence and
// an advice.
type failure struct {
	exit    int
	code    string
	message string
	// try is what to do. Every failure has one.
	try string
	// said means that the words are out already; only the exit code is left.
	said bool
	// cause may be nil.
	cause error
}

func (f *failure) Error() string { return f.message }
func (f *failure) Unwrap() error { return f.cause }

// usage is a failure of the command line.
func usage(try, format string, args ...any) error {
	return &failure{exit: exitUsage, code: codeUsage, message: fmt.Sprintf(format, args...), try: try}
}

// failed is a failure of what was asked for.
func failed(code, try, format string, args ...any) error {
	return &failure{exit: exitFailed, code: code, message: fmt.Sprintf(format, args...), try: try}
}

// silent ends the program with an exit code; everything has been said.
func silent(exit int) error { return &failure{exit: exit, said: true, message: "exit"} }

// failures are those of several sources: one that fails keeps nobody from the others.
type failures []error

func (f failures) Error() string   { return errors.Join(f...).Error() }
func (f failures) Unwrap() []error { return f }

// joined are the errors that are none of nil, nil when all are.
func joined(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return failures(errs)
}

// explain writes an error for people and returns the exit code, of several that of the first.
func (a *app) explain(err error) int {
	var several failures
	if errors.As(err, &several) {
		exit := a.explain(several[0])
		for _, err := range several[1:] {
			a.explain(err)
		}
		return exit
	}
	var problems config.Problems
	if errors.As(err, &problems) {
		a.words(a.paint(problems.Error()) + "\n" + problems.Summary() + "\n")
		return exitConfig
	}
	f := classify(err)
	if !f.said {
		a.words(a.paint(fmt.Sprintf("error %s: %s\nTry: %s\n", f.code, oneLine(f.message), f.try)))
	}
	return f.exit
}

// classify finds the failure in an error, or makes one of it.
func classify(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	if f := databaseFailure("", err); f != nil {
		return f
	}
	return &failure{exit: exitFailed, code: codeUnclassified, message: err.Error(),
		try: "if this looks like a mistake of cdc-dispatcher, report it with the command that you ran", cause: err}
}
