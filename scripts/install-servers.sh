#!/usr/bin/env bash
# Puts what the tests want, besides Go, on this machine:
#
#   PostgreSQL 15   from this system's own packages where they have it,
#                   else as a tree of Debian bookworm
#   PostgreSQL 18   as a tree of Debian sid
#   a C compiler    for Go's race detector
#
# A tree is a small Debian system in a folder, made with debootstrap, which the
# tests enter with chroot. Trees live outside the checkout, are made once and
# are never changed afterwards. What is there already is left alone, so a
# second run takes a moment. Two runs at once wait for each other; a run that is
# interrupted leaves nothing that could be taken for a tree.
#
#   CDC_DISPATCHER_SERVERS   the folder for trees (default: /var/cache/cdc-dispatcher)
#
# Installing needs root on Debian. Elsewhere the script says what to
# install by hand and ends well: tests of a missing server are then skipped, or
# fail where the CI variable is set.
set -euo pipefail

readonly cache=${CDC_DISPATCHER_SERVERS:-/var/cache/cdc-dispatcher}

say() { printf 'install-servers: %s\n' "$*"; }
die() { printf 'install-servers: %s\n' "$*" >&2; exit 1; }

# os_field NAME prints a field of the system's description.
os_field() { [[ -r /etc/os-release ]] && sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" /etc/os-release; }

# have_server MAJOR: real programs, as the tests look for them.
have_server() {
	local dir
	for dir in "/usr/lib/postgresql/$1/bin" "/usr/pgsql-$1/bin" \
		"/opt/homebrew/opt/postgresql@$1/bin" "/usr/local/opt/postgresql@$1/bin" \
		"$cache/postgresql-$1/usr/lib/postgresql/$1/bin"; do
		if [[ -x $dir/postgres && -x $dir/initdb && -x $dir/pg_ctl ]]; then
			say "PostgreSQL $1: $dir"
			return 0
		fi
	done
	return 1
}

apt_updated=
# apt_install PACKAGE...: quietly; reads the package lists once when that is
# what is missing.
apt_install() {
	local opts=(-y -q --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
	if [[ -z $apt_updated ]] && ! apt-get install "${opts[@]}" --simulate "$@" >/dev/null 2>&1; then
		say "apt-get update"
		quietly apt-get update -q
		apt_updated=yes
	fi
	say "apt-get install $*"
	DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1 quietly apt-get install "${opts[@]}" "$@"
}

# quietly COMMAND...: shows what it printed only when it fails.
quietly() {
	local log
	log=$(mktemp)
	if ! "$@" </dev/null >"$log" 2>&1; then
		tail -n 20 "$log" >&2
		rm -f "$log"
		die "failed: $*"
	fi
	rm -f "$log"
}

# install_package MAJOR: the system's own package, without the cluster that it
# would make and start: the tests only want the programs.
install_package() {
	local conf=/etc/postgresql-common/createcluster.conf
	apt-cache show "postgresql-$1" >/dev/null 2>&1 || return 1
	if [[ ! -e $conf ]]; then
		mkdir -p "${conf%/*}"
		printf '# Written by cdc-dispatcher: only the server programs are wanted.\ncreate_main_cluster = false\n' >"$conf"
	fi
	apt_install "postgresql-$1"
}

# mirror prints the archive that this machine's own package sources name.
mirror() {
	local codename uri
	codename=$(os_field VERSION_CODENAME)
	# shellcheck disable=SC2016 # the fields are apt-get's, not the shell's
	uri=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk -v own="$codename" '$3 == "main" && ($2 == own || $2 ~ /^(stable|testing|unstable|sid)$/) { print $1; exit }')
	case $uri in
	mirror+file:*) # a file with one archive per line, as cloud images have it
		uri=$(awk '/^[a-z]/ { print $1; exit }' "${uri#mirror+file:}") ;;
	esac
	[[ -n $uri ]] && printf '%s\n' "$uri"
}

# unmount DIR: what an interrupted debootstrap left mounted below it.
unmount() {
	local at
	awk -v dir="$1/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r |
		while read -r at; do umount "$at"; done
}

discard() {
	unmount "$1" && rm -rf --one-file-system "$1"
}

# bootstrap SUITE FOLDER ARCHIVE MAJOR: shows what debootstrap said when it
# fails. The lock is not handed down: what is started there may live longer.
bootstrap() {
	local log=$2.log
	discard "$2" && mkdir -m 755 "$2"
	if debootstrap --variant=minbase --include="postgresql-$4" "$1" "$2" "$3" </dev/null >"$log" 2>&1 9>&-; then
		rm -f "$log"
		return 0
	fi
	tail -n 20 "$log" "$2/debootstrap/debootstrap.log" >&2 2>/dev/null || true
	rm -f "$log"
	return 1
}

# make_tree SUITE MAJOR: under the lock, in a folder of its own, then renamed.
make_tree() (
	suite=$1 major=$2
	tree=$cache/postgresql-$major
	mkdir -p "$cache"
	exec 9>"$cache/.lock"
	flock -n 9 || { say "waiting for another run"; flock 9; }
	if have_server "$major"; then exit 0; fi
	for left in "$cache"/.building-*; do
		[[ -e $left ]] && discard "$left"
	done

	command -v debootstrap >/dev/null || apt_install debootstrap
	from=$(mirror) || die "no Debian archive among this machine's package sources (apt-get indextargets)"
	if [[ -z ${http_proxy:-} ]]; then
		eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
		if [[ -n ${http_proxy:-} && $http_proxy != DIRECT ]]; then export http_proxy; fi
	fi

	building=$(mktemp -d "$cache/.building-XXXXXX")
	trap 'discard "$building"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	say "PostgreSQL $major: making a tree of Debian $suite from $from in $tree (about a minute)"
	bootstrap "$suite" "$building" "$from" "$major" || {
		say "debootstrap failed; once more, in case the archive was being updated"
		bootstrap "$suite" "$building" "$from" "$major"
	} || die "debootstrap failed"
	unmount "$building"
	# Only programs are wanted: not the cluster that the package made, nor what
	# was downloaded, nor documentation.
	rm -rf "$building"/var/lib/postgresql/*/ "$building"/etc/postgresql/*/ \
		"$building"/var/cache/apt/archives/*.deb "$building"/var/lib/apt/lists/* \
		"$building"/usr/share/{doc,man,locale}/*
	chroot "$building" "/usr/lib/postgresql/$major/bin/postgres" --version >/dev/null ||
		die "the server of the new tree does not run"
	mv -T "$building" "$tree"
	trap - EXIT
	have_server "$major"
)

can_install() { [[ $(id -u) == 0 && $(os_field ID) == debian ]]; }

# want SUITE MAJOR
want() {
	have_server "$2" && return
	if ! can_install; then
		case $(uname -s) in
		Darwin) say "PostgreSQL $2 is missing: brew install postgresql@$2" ;;
		*) say "PostgreSQL $2 is missing: run this script as root on Debian, or install the package postgresql-$2" ;;
		esac
		return
	fi
	if [[ $1 == "$(os_field VERSION_CODENAME)" ]] && install_package "$2" && have_server "$2"; then
		return
	fi
	make_tree "$1" "$2"
}

want_compiler() {
	if command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null; then return; fi
	if can_install; then
		apt_install gcc libc6-dev
	else
		say "a C compiler is missing: Go's race detector needs one (package gcc)"
	fi
}

want_compiler
want bookworm 15
want sid 18
