// Package scripts holds the scripts that the program runs itself.
package scripts

import _ "embed"

// InstallServers is install-servers.sh, for bash: its arguments are names of servers.
//
//go:embed install-servers.sh
var InstallServers string
