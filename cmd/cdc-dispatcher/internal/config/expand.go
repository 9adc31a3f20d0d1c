package config

import (
	"fmt"
	"regexp"
	"strings"
)

// Environment is where references are looked up. Both functions may be nil, which
// means that nothing is set and no file exists.
type Environment struct {
	// Lookup returns a variable.
	Lookup func(name string) (string, bool)
	// ReadFile returns the content of a file named by ${file:…}; relative
	// paths have been made relative to the configuration file.
	ReadFile func(path string) ([]byte, error)
}

// expanded is the result of replacing the references of one scalar.
type expanded struct {
	text string
	// referenced says that a part of text did not come from the file itself. Such
	// a text is never shown.
	referenced bool
	// failed says that a reference could not be resolved; text is then useless.
	failed bool
}

// refError is a reference that cannot be resolved. Offset counts characters from 0.
type refError struct {
	code    Code
	offset  int
	message string
	try     string
}

// variableName is what a variable may be called.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// maxReferenceFile bounds a file named by ${file:…}.
const maxReferenceFile = 64 << 10

// expand replaces ${VAR}, ${VAR:-default} and ${file:path}, and turns $${ into
// ${. A default takes the place of a variable that is unset or empty. One line end
// at the end of a file is dropped.
func expand(text string, env Environment) (expanded, []refError) {
	var (
		out  strings.Builder
		res  expanded
		errs []refError
		read int // characters before rest
		rest = text
	)
	take := func(n int) string {
		part := rest[:n]
		rest = rest[n:]
		read += len([]rune(part))
		return part
	}
	for {
		i := strings.Index(rest, "${")
		if i < 0 {
			out.WriteString(rest)
			break
		}
		if i > 0 && rest[i-1] == '$' {
			out.WriteString(take(i - 1))
			take(3)
			out.WriteString("${")
			continue
		}
		out.WriteString(take(i))
		end := strings.IndexByte(rest, '}')
		at := read
		if end < 0 {
			errs = append(errs, refError{CodeReference, at, `"${" without "}"`,
				`close the reference, or write "$${" for the two characters themselves`})
			break
		}
		body := take(end + 1)
		value, err := resolve(body[2:end], env)
		if err != nil {
			err.offset = at
			errs = append(errs, *err)
			continue
		}
		res.referenced = true
		out.WriteString(value)
	}
	res.text = out.String()
	res.failed = len(errs) > 0
	return res, errs
}

// resolve looks up what stands between ${ and }.
func resolve(ref string, env Environment) (string, *refError) {
	if path, ok := strings.CutPrefix(ref, "file:"); ok {
		return resolveFile(path, env)
	}
	name, fallback, hasDefault := strings.Cut(ref, ":-")
	switch {
	case strings.Contains(fallback, "${"):
		return "", &refError{code: CodeReference, message: "references do not nest",
			try: "give one variable and a literal default: ${NAME:-default}"}
	case !variableName.MatchString(name):
		return "", &refError{code: CodeReference, message: "this is not a reference",
			try: `write ${NAME}, ${NAME:-default} or ${file:/path}, or "$${" for the two characters themselves`}
	}
	value, ok := "", false
	if env.Lookup != nil {
		value, ok = env.Lookup(name)
	}
	switch {
	case hasDefault && value == "":
		return fallback, nil
	case !ok:
		return "", &refError{code: CodeUnset, message: fmt.Sprintf("variable %s is not set", name),
			try: fmt.Sprintf("set %s in the environment of cdc-dispatcher, or give a default: ${%s:-…}", name, name)}
	}
	return value, nil
}

func resolveFile(path string, env Environment) (string, *refError) {
	if path == "" {
		return "", &refError{code: CodeReference, message: "${file:} names no file", try: "write ${file:/path/to/the/file}"}
	}
	fail := func(why string) (string, *refError) {
		return "", &refError{code: CodeReferenceFile, message: fmt.Sprintf("file %s: %s", path, why),
			try: "check that the file exists and that the user of cdc-dispatcher may read it"}
	}
	if env.ReadFile == nil {
		return fail("no such file")
	}
	data, err := env.ReadFile(path)
	switch {
	case err != nil:
		return fail(fileReason(err))
	case len(data) > maxReferenceFile:
		return fail("is larger than 64 KiB")
	}
	text := strings.TrimSuffix(string(data), "\n")
	return strings.TrimSuffix(text, "\r"), nil
}
