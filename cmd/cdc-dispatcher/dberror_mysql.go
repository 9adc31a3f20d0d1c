package main

import (
	sqldriver "database/sql/driver"
	"errors"
	"fmt"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// mysqlFailure explains an answer of a MySQL or MariaDB server by its number, and what the
// driver has for errors of its own. It is nil for every other error.
func mysqlFailure(err error) *failure {
	switch {
	case errors.Is(err, driver.ErrNoTLS):
		return &failure{code: codeTLS, message: "the server offers no encrypted connection", try: "set mysql: {tls: {mode: preferred}}, or let the server have a certificate"}
	case errors.Is(err, driver.ErrInvalidConn), errors.Is(err, sqldriver.ErrBadConn):
		return &failure{code: codeUnreachable, message: "the connection to the database broke off", try: "check that the server runs, and its error log"}
	case errors.Is(err, migrate.ErrPayloadsKept):
		return &failure{code: codeDatabase, message: innermost(err), try: "delete those deliveries first, or keep the column"}
	}
	answer, ok := errors.AsType[*driver.MySQLError](err)
	if !ok {
		return nil
	}
	message := fmt.Sprintf("%s (error %d)", answer.Message, answer.Number)
	switch answer.Number {
	case 1045, 1130, 1524, 1698, 1862, 3118, 4151:
		return &failure{code: codeAuth, message: "the database refuses the login: " + message,
			try: "check user, password and host of the account: SELECT user, host, plugin FROM mysql.user"}
	case 1049:
		return &failure{code: codeNoDatabase, message: message,
			try: "check the database's name in the DSN, or leave it out: cdc-dispatcher migrate up creates its own"}
	case 1044, 1142, 1143, 1227, 1370, 1419:
		return &failure{code: codePrivilege, message: message, try: "cdc-dispatcher doctor, which prints the GRANT that is missing"}
	case 1146:
		return &failure{code: codeNotMigrated, message: message, try: "cdc-dispatcher migrate up"}
	case 1054:
		return &failure{code: codeTable, message: message, try: "cdc-dispatcher doctor, which compares the columns; or cdc-dispatcher migrate up"}
	case 1290, 1792, 1836:
		return &failure{code: codeReadOnly, message: message, try: "point the DSN at the primary"}
	case 1040, 1053, 1203, 1226:
		return &failure{code: codeBusy, message: message, try: "wait until the server accepts connections, or raise max_connections"}
	case 1205:
		return &failure{code: codeBusy, message: message, try: "repeat it when the transaction that holds the table has ended: SELECT * FROM information_schema.innodb_trx"}
	case 1969, 3024:
		return &failure{code: codeBusy, message: message, try: "repeat it when the server is less busy, or raise max_execution_time (MariaDB: max_statement_time)"}
	case 3159:
		return &failure{code: codeTLS, message: message, try: "set mysql: {tls: {mode: require}}"}
	}
	return &failure{code: codeDatabase, message: message, try: "cdc-dispatcher doctor"}
}
