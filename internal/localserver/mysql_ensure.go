package localserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/cdc-dispatcher/cdc-dispatcher/scripts"
)

// EnsureMySQL returns a server of the family that StartMySQL can start, and gets
// one if need be: the newest local one; else, for root on Debian, what
// scripts/install-servers.sh installs (the programs only, no service, and nothing is
// removed for them; MySQL as a system tree under Cache). It tells log, in a few
// words, what it does. When all fails, the error wraps ErrNotFound and says what to
// install here.
func EnsureMySQL(ctx context.Context, family Family, log func(string)) (MySQLInstall, error) {
	install, err := findSeries(ctx, family, "")
	if err == nil || os.Geteuid() != 0 || !isDebian() {
		return install, err
	}
	name := "mysql-9.7"
	if family == MariaDBServer {
		name = "mariadb-10.11"
	}
	log(fmt.Sprintf("no %s found: installing it", cmp.Or(family, MySQLServer)))
	if err := installServer(ctx, name); err != nil {
		return MySQLInstall{}, errors.Join(fmt.Errorf("%w; %s", ErrNotFound, howToInstallMySQL(cmp.Or(family, MySQLServer))), err)
	}
	return findSeries(ctx, family, "")
}

// installServer runs the script; an interruption lets it clean up.
func installServer(ctx context.Context, name string) error {
	cmd := exec.CommandContext(ctx, "bash", "-s", "--", name)
	cmd.Env = append(os.Environ(), "CDC_DISPATCHER_SERVERS="+Cache())
	cmd.Stdin = strings.NewReader(scripts.InstallServers)
	cmd.Cancel = func() error { return cmd.Process.Signal(terminate) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("install %s: %w: %s", name, errors.Join(err, context.Cause(ctx)), lastLines(out.Bytes(), 5))
	}
	return nil
}
