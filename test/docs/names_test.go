package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocs_NamesExist fails when README.md or a page of docs/ names a test that is
// not there: a promise without its test is only a sentence.
func TestDocs_NamesExist(t *testing.T) {
	root := filepath.Join("..", "..")
	tests := sources(t, root)
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*|(?:M8_)?[A-Z][0-9]+_[A-Za-z0-9_]+)`")
	seen := 0
	for _, page := range pages(t, root) {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(content), -1) {
			seen++
			if !strings.Contains(tests, "func "+m[1]+"(") && !strings.Contains(tests, `"`+m[1]+`"`) {
				t.Errorf("%s names %s, and there is no such test", filepath.Base(page), m[1])
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d tests are named in the pages; the pattern no longer finds them", seen)
	}
}

func pages(t *testing.T, root string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	return append(found, filepath.Join(root, "README.md"))
}

// sources is all Go code that tests are made of, in one piece.
func sources(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go"), !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "test"):
			return nil
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
