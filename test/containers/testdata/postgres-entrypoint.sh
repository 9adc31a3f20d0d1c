#!/bin/sh
# The part of the official postgres image that the compose file and localserver
# rely on: a cluster in $PGDATA made from POSTGRES_USER, POSTGRES_PASSWORD,
# POSTGRES_DB, POSTGRES_HOST_AUTH_METHOD and POSTGRES_INITDB_ARGS, and arguments
# that begin with a dash passed to the server.
set -eu

if [ "$(id -u)" = 0 ]; then
	mkdir -p "$PGDATA" /run/postgresql
	chown -R postgres: "$PGDATA" /run/postgresql
	chmod 700 "$PGDATA"
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
	user=${POSTGRES_USER:-postgres}
	printf '%s\n' "${POSTGRES_PASSWORD:-}" >/tmp/password
	# shellcheck disable=SC2086 # several arguments in one variable
	initdb --no-sync --encoding=UTF8 --locale=C --auth-local=trust --username="$user" \
		${POSTGRES_PASSWORD:+--pwfile=/tmp/password} ${POSTGRES_INITDB_ARGS:-}
	rm /tmp/password
	echo "host all all all ${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}" >>"$PGDATA/pg_hba.conf"
	if [ "${POSTGRES_DB:-$user}" != postgres ]; then
		echo "CREATE DATABASE \"${POSTGRES_DB:-$user}\"" | postgres --single -j postgres >/dev/null
	fi
fi

case ${1:-} in
'' | -*) set -- postgres "$@" ;;
esac
exec "$@" -c "listen_addresses=*"
