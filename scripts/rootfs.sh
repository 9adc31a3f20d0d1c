#!/bin/sh
# Builds the file system of an image FROM scratch into a folder: one static
# program, the certificate authorities it trusts, and nothing else.
#
#   scripts/rootfs.sh FOLDER [PACKAGE] [VERSION]
set -eu

dest=$1
package=${2:-./cmd/cdc-dispatcher}
version=${3:-dev}

rm -rf "$dest"
mkdir -p "$dest/etc/ssl/certs" "$dest/tmp"
chmod 1777 "$dest/tmp"
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$dest/${package##*/}" "$package"

for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
	if [ -r "$bundle" ]; then
		cp -L "$bundle" "$dest/etc/ssl/certs/ca-certificates.crt"
		exit 0
	fi
done
echo "rootfs: no bundle of certificate authorities on this machine: the image can reach no TLS server" >&2
