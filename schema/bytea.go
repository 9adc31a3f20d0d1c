package schema

import (
	"bytes"
	"encoding/hex"
	"errors"
)

var errBytea = errors.New("is not a bytea as the database prints it")

// decodeBytea returns the content of a bytea from its text form: "\x6869", or
// the older escape form, which a role can be set to.
func decodeBytea(text []byte) ([]byte, error) {
	if digits, ok := bytes.CutPrefix(text, []byte(`\x`)); ok {
		content := make([]byte, hex.DecodedLen(len(digits)))
		if _, err := hex.Decode(content, digits); err != nil {
			return nil, errBytea
		}
		return content, nil
	}
	content := make([]byte, 0, len(text))
	for len(text) > 0 {
		switch {
		case text[0] != '\\':
			content, text = append(content, text[0]), text[1:]
		case len(text) >= 2 && text[1] == '\\':
			content, text = append(content, '\\'), text[2:]
		case len(text) >= 4 && text[1] <= '3' && isOctal(text[1]) && isOctal(text[2]) && isOctal(text[3]):
			content = append(content, (text[1]-'0')<<6|(text[2]-'0')<<3|(text[3]-'0'))
			text = text[4:]
		default:
			return nil, errBytea
		}
	}
	return content, nil
}

func isOctal(c byte) bool { return c >= '0' && c <= '7' }
