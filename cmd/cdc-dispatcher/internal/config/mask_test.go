package config

import (
	"strings"
	"testing"
)

// TestMasks: a secret is hidden wherever it stands, and what is none is not.
func TestMasks(t *testing.T) {
	for _, tt := range []struct{ name, src string }{
		{"literal dsn", "dsn: postgres://app:SECRET@db/shop\n"},
		{"dsn in the wrong place", "a:\n  - b: {dsn: \"host=x password=SECRET\"}\n"},
		{"url anywhere", "anything: postgres://app:SEC@RET@db/shop\n"},
		{"url with raw characters", "anything: postgres://app:x/SECRET#?@db/shop\n"},
		{"dsn of the driver", "dsn: app:SECRET@tcp(db:3306)/shop\n"},
		{"dsn of the driver anywhere", "{x: \"app:SEC@RET@tcp(db:3306)/shop\", y: z}\n# try app:SECRET@unix(/x)/y\n"},
		{"mysql url", "dsn: mysql://app:SECRET@db/shop\nx: mariadb://app:SECRET@db/shop\n"},
		{"password", "password: SECRET\n"},
		{"several lines", "password: |\n  SEC\n  SECRET\nlog: x\n"},
		{"folded", "password: some\n  SECRET\n  words\nlog: x\n"},
		{"list", "secrets:\n  - SECRET\n  - whsec_SECRET\n"},
		{"flow", "webhook: {secrets: [SECRET, \"SECRET, SECRET\"], url: x}\n"},
		{"headers", "headers: {Authorization: Bearer SECRET, X: SECRET}\n"},
		{"webhook url", "webhook:\n  url: https://hooks.example/services/SEC,RET/x?y=SECRET#SECRET\n"},
		{"webhook url without scheme", "webhook: {url: hooks.example/SECRET, proxy: proxy.example?SECRET}\n"},
		{"webhook url of another scheme", "webhook: {\"url\": 'ftp://hooks.example/SEC\\RET'}\n"},
		{"webhook url, misspelt", "webhok: https://hooks.example:8443?token=SECRET\n"},
		{"webhook url, folded", "url: >-\n  https://hooks.example/SECRET\n"},
		{"webhook url, commented out", "# https://hooks.example/SECRET\nx: [\nurl: https://hooks.example/SECRET\n"},
		{"proxy", "proxy: http://SECRET@proxy.example:3128/SECRET\n"},
		{"misspelt", "pasword: SECRET\nsercets: [SECRET]\ntokne: SECRET\nAPI-Key: SECRET\n"},
		{"default of a reference", "password: ${PASSWORD:-SECRET}\n"},
		{"by its looks", "x: whsec_SECRET\ny: bearer SECRETSECRET\nz: \"password=SECRET\"\n"},
		{"comment", "# password: SECRET\nx: y # postgres://u:SECRET@h/d\n"},
		{"anchor", "password: &p SECRET\n"},
		{"tag", "password: !!str SECRET\n"},
		{"second document", "a: b\n---\npassword: SECRET\n"},
		{"not YAML", "password: SECRET\nx: [\n"},
		{"not YAML, indented", "x: [\nsecrets:\n  - SECRET\n  -\n    SECRET\nheaders:\n  A: SECRET\n"},
		{"not YAML, one line", "x: {dsn: SECRET, y: [}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := parse("x", []byte(tt.src))
			for i, line := range doc.lines {
				if text, _ := doc.masks.show(i+1, line, 1); strings.Contains(text, "SEC") || strings.Contains(text, "RET") {
					t.Errorf("line %d is shown: %q", i+1, text)
				}
			}
		})
	}
	shown := "mode: poll\ndsn: ${DATABASE_URL}\ndsn2: postgres://app:${PW}@db/shop\npassword: ${file:/run/x}\ndsn3: postgres://app@db:5432/shop?sslmode=verify-full\ndsn4: app@tcp(db:3306)/shop?tls=true\ndsn5: mysql://app@db/shop\nx: {name: b, dsn: app@unix(/run/x.sock)/shop}\n# mode: poll\n" +
		"url: https://hooks.example:8443/\nurl2: https://hooks.example/${TOKEN}\nwebhook: {url: \"https://hooks.example\", proxy: 'http://proxy.example:3128'}\nurl3: ${URL}\n"
	doc := parse("x", []byte(shown))
	for i, line := range doc.lines {
		if text, _ := doc.masks.show(i+1, line, 1); text != line {
			t.Errorf("%q is shown as %q", line, text)
		}
	}
}

// TestCaretSurvivesMasking: the caret stands under the same character when what
// is before it became shorter.
func TestCaretSurvivesMasking(t *testing.T) {
	const line = "{password: abcdefghijklm, mode: wal}"
	doc := parse("x", []byte(line+"\n"))
	column := strings.Index(line, "wal") + 1
	text, caret := doc.masks.show(1, line, column)
	if text != "{password: ***, mode: wal}" || caret != strings.Index(text, "wal")+1 {
		t.Errorf("%q, caret %d", text, caret)
	}
}
