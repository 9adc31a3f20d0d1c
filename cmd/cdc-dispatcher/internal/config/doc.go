// Package config reads the one YAML file of cdc-dispatcher into a [Config] whose
// every default is applied and every value is checked.
//
// Promise: everything that is wrong with a file is reported at once, each
// [Problem] with a code, a place (file, line, column), the lines around it, what is
// meant instead when that can be guessed, and what to do. An unknown key is an
// error everywhere. Parsing never panics.
//
// The way of a file: bytes are checked and turned into a small tree of our own
// (document.go, the only place that knows the YAML library); references such as
// ${VAR} are replaced in scalar values, whose result is never read as YAML again
// (expand.go); typed fields are decoded with their positions (decode.go and the
// files that describe the blocks); what involves several values is checked last
// (check.go).
//
// Secrets: neither the value of a secret field nor anything that a reference
// expanded to appears in a problem. The quoted source lines are masked (mask.go).
//
// The package reads the file, the files named by ${file:…} and the variables
// named by ${…}, and nothing else. It starts no goroutine and keeps no state.
package config
