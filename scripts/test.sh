#!/usr/bin/env bash
# Runs go test over the given packages and ends with what ran where and with go
# test's own closing lines. Arguments go to go test; its exit status is kept.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CDC_DISPATCHER_TEST_REPORT=$work/report
: >"$CDC_DISPATCHER_TEST_REPORT"

status=0
go test "$@" 2>&1 | tee "$work/log" || status=$?

printf '\n== servers\n'
awk -F '\t' '
	$1 == "server" { from[$2 "\t" $4]++; starts[$2 "\t" $4]++ }
	$1 == "test" && !seen[$2, $3, $4]++ { tests[$2]++; if (!pkg[$2, $3]++) pkgs[$2]++ }
	$1 == "missing" && !seen[$2, $3, $4]++ { missing[$2]++ }
	END {
		for (s in tests) printf "%s: %d tests in %d packages\n", s, tests[s], pkgs[s]
		for (s in missing) printf "%s: MISSING, %d tests did not run\n", s, missing[s]
		for (k in from) { split(k, p, "\t"); printf "%s: %d started: %s\n", p[1], starts[k], p[2] }
	}' "$CDC_DISPATCHER_TEST_REPORT" | sort
awk -F '\t' '$1 == "note" && !seen[$4]++ { print "note: " $4 }' "$CDC_DISPATCHER_TEST_REPORT"
if grep -q '^ledger' "$CDC_DISPATCHER_TEST_REPORT"; then
	printf '\n== promises: what was committed, what was delivered, what was broken on purpose\n'
	awk -F '\t' '
		BEGIN { print_row("test", "server", "committed", "undone", "deliveries", "lost", "repeats", "faults") }
		function print_row(t, s, c, u, d, l, r, f) { printf "%-58s %-16s %9s %7s %10s %5s %7s  %s\n", t, s, c, u, d, l, r, f }
		$1 == "ledger" { print_row($2, $3, $4, $5, $6, $7, $8, $9) }' "$CDC_DISPATCHER_TEST_REPORT"
fi
if grep -q '^table' "$CDC_DISPATCHER_TEST_REPORT"; then
	printf '\n== faults from a seed: what was broken, and what was left\n'
	sed -n 's/^table\t//p' "$CDC_DISPATCHER_TEST_REPORT"
fi
printf '\n== packages\n'
grep -E '^(ok[[:space:]]|FAIL|--- FAIL|panic: )' "$work/log" || true
exit "$status"
