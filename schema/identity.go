package schema

import (
	"crypto/md5" //nolint:gosec // an identifier that SQL must be able to compute, not a secret
	"encoding/hex"
)

// EventID returns the event id of a row whose key has the given text form, and whether
// it had to be derived. table is [Table.QualifiedName].
//
// The canonical lower-case text of a UUID is its own event id. Every other key is
// hashed together with the table's name, so that 42 in one table and 42 in
// another are two events. The hash becomes a UUID of version 3 (that of MD5): a column of
// MariaDB's type UUID refuses a quarter of all 128-bit numbers, and some of version 8.
func EventID(table, key string) (id string, derived bool) {
	if isUUID(key) {
		return key, false
	}
	sum := md5.Sum([]byte(table + ":" + key)) //nolint:gosec // see the import
	sum[6] = sum[6]&0x0f | 0x30
	sum[8] = sum[8]&0x3f | 0x80
	return formatUUID(sum), true
}

// isUUID says whether s is a UUID as PostgreSQL prints it. Upper case, braces and
// missing hyphens are other texts, and two texts are never one event.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

func formatUUID(b [16]byte) string {
	var dst [36]byte
	hex.Encode(dst[:8], b[:4])
	dst[8] = '-'
	hex.Encode(dst[9:13], b[4:6])
	dst[13] = '-'
	hex.Encode(dst[14:18], b[6:8])
	dst[18] = '-'
	hex.Encode(dst[19:23], b[8:10])
	dst[23] = '-'
	hex.Encode(dst[24:], b[10:])
	return string(dst[:])
}
