// Package localserver finds database server binaries on this machine and runs
// throw-away servers from them, for tests and for the demo.
//
// Promise. StartPostgres returns a server that accepts connections on
// 127.0.0.1, on a port and a data folder of its own, owned by one superuser
// named "postgres" without a password. It works for root too, although initdb
// and postgres refuse root: the server then runs as another user. Close leaves
// nothing behind: no process, no file, no shared memory segment. StartMySQL does the
// same for MySQL and MariaDB: the superuser is root, the binary log is on. What
// its first start would do anew each time is kept under Cache as a template.
//
// Ownership. Each running server has one goroutine, locked to one OS thread,
// that starts the process and waits for it. It ends when the process ends. On
// Linux the kernel stops the server when that thread goes, so a test binary
// that is killed with SIGKILL leaves no server; the folder it leaves is removed
// by the next StartPostgres of any process (see sweep). Connections are opened
// only to see whether the server accepts, and closed at once.
//
// Failure. A server that does not start is removed again, and the error ends
// with the last lines of its log. Methods of a Postgres may be called from any
// goroutine; they run one after the other.
//
// Where servers come from, in this order: folders on PATH, the folders of Linux
// distributions and Homebrew, and system trees under Cache, which
// scripts/install-servers.sh makes and which are run in a chroot (root only).
// EnsurePostgres adds what apt can install and, last, a container engine;
// EnsureMySQL what scripts/install-servers.sh installs.
package localserver
