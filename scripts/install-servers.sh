#!/usr/bin/env bash
# Puts what the tests want, besides Go, on this machine:
#
#   postgresql-15   mariadb-10.11   from this system's own packages where it is
#                                   Debian bookworm, else as trees of bookworm
#   mariadb-11.8                    the same for Debian trixie
#   postgresql-18   mysql-9.7       the same for Debian sid
#   a C compiler                    for Go's race detector
#
#   scripts/install-servers.sh [NAME...]   only these servers, and no compiler
#
# A tree is a small Debian system in a folder, which the tests enter with chroot.
# For PostgreSQL, debootstrap makes it; for MariaDB and MySQL it is no more than the
# server's packages and what they depend on, unpacked: nothing of them has to be
# configured, and that takes seconds. Trees live outside the checkout, are made
# once and are never changed afterwards. What is there already is left alone, so a
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
readonly servers=(postgresql-15 postgresql-18 mariadb-10.11 mariadb-11.8 mysql-9.7)

say() { printf 'install-servers: %s\n' "$*"; }
die() { printf 'install-servers: %s\n' "$*" >&2; exit 1; }

# suite NAME: the release of Debian that has this server.
suite() {
	case $1 in
	postgresql-15 | mariadb-10.11) echo bookworm ;;
	mariadb-11.8) echo trixie ;;
	postgresql-18 | mysql-9.7) echo sid ;;
	*) die "unknown server $1; known: ${servers[*]}" ;;
	esac
}

# packages NAME: those with the programs, without one that starts a service.
packages() {
	case $1 in
	postgresql-*) echo "$1" ;;
	mariadb-*) echo mariadb-server-core mariadb-client-core ;;
	mysql-*) echo mysql-server-core ;;
	esac
}

# title NAME: as people write it.
title() {
	local version=${1#*-}
	case $1 in
	postgresql-*) echo "PostgreSQL $version" ;;
	mariadb-*) echo "MariaDB $version" ;;
	mysql-*) echo "MySQL $version" ;;
	esac
}

# os_field NAME prints a field of the system's description.
os_field() { [[ -r /etc/os-release ]] && sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" /etc/os-release; }

# have NAME: real programs, where the tests look for them.
have() {
	case $1 in
	postgresql-*) have_postgresql "${1#*-}" ;;
	*) have_mysql "$1" ;;
	esac
}

have_postgresql() {
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

# have_mysql NAME: the names of programs and folders do not say which version it is.
have_mysql() {
	local path
	for path in /usr/{sbin,libexec,bin}/{mariadbd,mysqld} /usr/local/mysql/bin/mysqld \
		/opt/homebrew/opt/m*/bin/{mariadbd,mysqld} /usr/local/opt/m*/bin/{mariadbd,mysqld}; do
		if [[ -x $path ]] && is_version "$1" "$("$path" --no-defaults --version 2>/dev/null)"; then
			say "$(title "$1"): $path"
			return 0
		fi
	done
	[[ $(id -u) == 0 ]] || return 1
	for path in "$cache"/*/usr/sbin/{mariadbd,mysqld}; do
		if [[ -x $path ]] && tree_runs "$1" "${path%/usr/sbin/*}"; then
			say "$(title "$1"): $path"
			return 0
		fi
	done
	return 1
}

# is_version NAME TEXT: TEXT is what the server's --version printed.
is_version() {
	[[ $2 == *"Ver ${1#*-}."* ]] || return 1
	case $1 in
	mariadb-*) [[ $2 == *MariaDB* ]] ;;
	*) [[ $2 != *MariaDB* ]] ;;
	esac
}

# tree_runs NAME TREE
tree_runs() {
	local version=${1#*-}
	case $1 in
	postgresql-*)
		chroot "$2" "/usr/lib/postgresql/$version/bin/postgres" --version >/dev/null 2>&1
		;;
	mariadb-*)
		is_version "$1" "$(chroot "$2" /usr/sbin/mariadbd --no-defaults --version 2>/dev/null)" &&
			chroot "$2" /bin/sh -c 'for p in mariadb-install-db my_print_defaults; do command -v $p || exit 1; done' >/dev/null 2>&1
		;;
	mysql-*)
		is_version "$1" "$(chroot "$2" /usr/sbin/mysqld --no-defaults --version 2>/dev/null)"
		;;
	esac
}

apt_updated=
# apt_install PACKAGE...: quietly; reads the package lists once when that is
# what is missing. Nothing that is installed is removed for it.
apt_install() {
	local opts=(-y -q --no-install-recommends --no-remove -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
	if [[ -z $apt_updated ]] && ! apt-get install "${opts[@]}" --simulate "$@" >/dev/null 2>&1; then
		say "apt-get update"
		quietly apt-get update -q || return 1
		apt_updated=yes
	fi
	say "apt-get install $*"
	DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1 quietly apt-get install "${opts[@]}" "$@"
}

# quietly COMMAND...: shows what it printed only when it fails. The lock is not
# handed down: what is started there may live longer.
quietly() {
	local log
	log=$(mktemp)
	if ! "$@" </dev/null >"$log" 2>&1 9>&-; then
		{
			say "failed: $*"
			tail -n 20 "$log"
		} >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

# install_package NAME: the system's own package, without the cluster that
# PostgreSQL's would make and start: the tests only want the programs.
install_package() {
	local conf=/etc/postgresql-common/createcluster.conf
	[[ $(suite "$1") == "$(os_field VERSION_CODENAME)" ]] || return 1
	if [[ $1 == postgresql-* && ! -e $conf ]]; then
		mkdir -p "${conf%/*}"
		printf '# Written by cdc-dispatcher: only the server programs are wanted.\ncreate_main_cluster = false\n' >"$conf"
	fi
	# shellcheck disable=SC2046 # package names
	apt_install $(packages "$1") && have "$1"
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

# bootstrap SUITE FOLDER ARCHIVE PACKAGE...: a whole small system.
bootstrap() {
	local suite=$1 folder=$2 from=$3
	shift 3
	if quietly debootstrap --variant=minbase --include="${*// /,}" "$suite" "$folder" "$from"; then
		return 0
	fi
	tail -n 20 "$folder/debootstrap/debootstrap.log" >&2 2>/dev/null || true
	return 1
}

# unpack SUITE FOLDER ARCHIVE PACKAGE...: the packages and what they depend on.
unpack() {
	local suite=$1 folder=$2 from=$3 apt=$2/.apt keyring=/usr/share/keyrings/debian-archive-keyring deb dir
	shift 3
	[[ -r $keyring.gpg ]] && keyring+=.gpg || keyring+=.pgp
	mkdir -p "$apt"/{lists,cache/archives}/partial "$apt/none"
	: >"$apt/status"
	printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$from" "$suite" >"$apt/sources.list"
	# This machine's apt, with its proxy, but as if nothing were installed. Sid's
	# release file can be out of its validity time.
	local opts=(-q -y --no-install-recommends -o Dir::State="$apt" -o Dir::State::lists="$apt/lists"
		-o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o Dir::Etc::sourcelist="$apt/sources.list"
		-o Dir::Etc::sourceparts="$apt/none" -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts="$apt/none"
		-o APT::Default-Release="$suite" -o APT::Sandbox::User=root -o Acquire::Languages=none
		-o Acquire::Check-Valid-Until=false -o Acquire::Retries=3 -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
	quietly apt-get "${opts[@]}" -o APT::Update::Error-Mode=any update &&
		quietly apt-get "${opts[@]}" --download-only install "$@" || return 1

	for dir in bin sbin lib lib64; do
		mkdir -p "$folder/usr/$dir" && ln -s "usr/$dir" "$folder/$dir"
	done
	for deb in "$apt"/cache/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$deb" | tar --extract --keep-directory-symlink --directory "$folder" || return 1
	done
	mkdir -p "$folder"/{dev,etc,proc,root,run,sys,var/lib}
	mkdir -p -m 1777 "$folder"/{tmp,var/tmp}
	mknod -m 666 "$folder/dev/null" c 1 3 && mknod -m 666 "$folder/dev/zero" c 1 5 &&
		mknod -m 666 "$folder/dev/random" c 1 8 && mknod -m 666 "$folder/dev/urandom" c 1 9 || return 1
	printf '%s\n' root:x:0:0:root:/root:/bin/sh nobody:x:65534:65534:nobody:/nonexistent:/bin/false >"$folder/etc/passwd"
	printf '%s\n' root:x:0: nogroup:x:65534: >"$folder/etc/group"
	rm -rf "$apt"
}

# build NAME FOLDER ARCHIVE
build() {
	local wanted
	discard "$2" && mkdir -m 755 "$2" || return 1
	read -ra wanted <<<"$(packages "$1")"
	case $1 in
	postgresql-*) bootstrap "$(suite "$1")" "$2" "$3" "${wanted[@]}" ;;
	*) unpack "$(suite "$1")" "$2" "$3" "${wanted[@]}" dash coreutils sed grep hostname ;; # for mariadb-install-db
	esac
}

# make_tree NAME ARCHIVE: in a folder of its own, then renamed.
make_tree() {
	local name=$1 from=$2 tree=$cache/$1
	building=$(mktemp -d "$cache/.building-XXXXXX")
	trap 'discard "$building"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	say "$(title "$name"): making a tree of Debian $(suite "$name") from $from in $tree"
	build "$name" "$building" "$from" || {
		say "$(title "$name"): once more, in case the archive was being updated"
		build "$name" "$building" "$from"
	} || die "$(title "$name"): no tree could be made"
	unmount "$building"
	# Only programs are wanted: not the cluster that PostgreSQL's package made, nor
	# what was downloaded, nor documentation.
	rm -rf "$building"/var/lib/postgresql/*/ "$building"/etc/postgresql/*/ \
		"$building"/var/cache/apt/archives/*.deb "$building"/var/lib/apt/lists/* \
		"$building"/usr/share/{doc,man,locale}/*
	tree_runs "$name" "$building" ||
		die "$(title "$name"): Debian $(suite "$name") has no such server now, or it does not run"
	[[ ! -e $tree ]] || discard "$tree" # it held another version, or did not run
	mv -T "$building" "$tree"
	trap - EXIT
	have "$name"
}

jobs=()
# make_trees NAME...: at the same time, each in a process group of its own, so that an
# interruption can end all that a job has started.
make_trees() {
	local name from left job failed=
	from=$(mirror) || die "no Debian archive among this machine's package sources (apt-get indextargets)"
	if [[ -z ${http_proxy:-} ]]; then # debootstrap does not ask apt
		eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
		if [[ -n ${http_proxy:-} && $http_proxy != DIRECT ]]; then export http_proxy; fi
	fi
	for left in "$cache"/.building-*; do
		[[ ! -e $left ]] || discard "$left"
	done
	trap 'interrupt INT 130' INT
	trap 'interrupt TERM 143' TERM
	set -m
	for name in "$@"; do
		(make_tree "$name" "$from") </dev/null &
		jobs+=($!)
	done
	set +m
	for job in "${jobs[@]}"; do
		wait "$job" || failed=yes
	done
	trap - INT TERM
	[[ -z $failed ]]
}

# interrupt SIGNAL STATUS: the jobs clean up after themselves.
interrupt() {
	local job
	trap '' INT TERM
	for job in "${jobs[@]}"; do kill -s "$1" -- "-$job" 2>/dev/null || true; done
	wait
	exit "$2"
}

can_install() { [[ $(id -u) == 0 && $(os_field ID) == debian ]]; }

# by_hand NAME: how to get it where this script cannot install.
by_hand() {
	local formula=${1/-/@}
	case $(uname -s) in
	Darwin) say "$(title "$1") is missing: brew install $formula" ;;
	*) say "$(title "$1") is missing: run this script as root on Debian, or install its server package" ;;
	esac
}

want_compiler() {
	if command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null; then return; fi
	if can_install; then
		apt_install gcc libc6-dev || die "a C compiler could not be installed"
	else
		say "a C compiler is missing: Go's race detector needs one (package gcc)"
	fi
}

# want NAME...: what is missing, from packages first, then as trees.
want() {
	local name missing=() trees=()
	for name in "$@"; do
		suite "$name" >/dev/null
		have "$name" || missing+=("$name")
	done
	((${#missing[@]})) || return 0
	if ! can_install; then
		for name in "${missing[@]}"; do by_hand "$name"; done
		return 0
	fi
	mkdir -p "$cache"
	exec 9>"$cache/.lock"
	flock -n 9 || { say "waiting for another run"; flock 9; }
	for name in "${missing[@]}"; do
		have "$name" || install_package "$name" || trees+=("$name")
	done
	((${#trees[@]})) || return 0
	if [[ " ${trees[*]}" == *" postgresql-"* ]] && ! command -v debootstrap >/dev/null; then
		apt_install debootstrap || die "debootstrap could not be installed"
	fi
	make_trees "${trees[@]}"
}

(($#)) || want_compiler
if (($#)); then want "$@"; else want "${servers[@]}"; fi
