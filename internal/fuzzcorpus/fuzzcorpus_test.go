package fuzzcorpus

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestProblems(t *testing.T) {
	const source = "package p\n\nfunc FuzzOne(f *testing.F) {\n}\n"
	seeds := func(values ...string) fstest.MapFS {
		dir := fstest.MapFS{"a_test.go": file(source)}
		for i, v := range values {
			dir["testdata/fuzz/FuzzOne/"+string(rune('a'+i))] = file(v)
		}
		return dir
	}
	seed := func(values string) string { return header + "\n" + values + "\n" }
	const few = "FuzzOne has %s seeds that hold anything, want at least 3 in testdata/fuzz/FuzzOne"
	orphan := seeds(seed(`string("a")`), seed(`[]byte("b")`), seed("string(\"\")\nint(1)"))
	orphan["testdata/fuzz/FuzzTwo/a"] = file(seed(`string("a")`))
	for name, tc := range map[string]struct {
		dir  fstest.MapFS
		want []string
	}{
		"enough":         {seeds(seed(`string("a")`), seed(`[]byte("b")`), seed("string(\"\")\nint(1)")), nil},
		"none":           {seeds(), []string{strings.Replace(few, "%s", "0", 1)}},
		"nothing in one": {seeds(seed(`string("a")`), seed(`string("b")`), seed("string(\"\")\n[]byte(\"\")\nbool(false)\nbyte('\\x00')\nint(0)")), []string{strings.Replace(few, "%s", "2", 1)}},
		"an empty file":  {seeds(seed(`string("a")`), seed(`string("b")`), seed(`string("c")`), ""), []string{"testdata/fuzz/FuzzOne/d is not a seed that go test can read"}},
		"no values":      {seeds(seed(`string("a")`), seed(`string("b")`), seed(`string("c")`), header), []string{"testdata/fuzz/FuzzOne/d is not a seed that go test can read"}},
		"no target":      {fstest.MapFS{"a_test.go": file("package p\n")}, []string{"there is no fuzz target: the test checks nothing"}},
		"target is gone": {orphan, []string{"testdata/fuzz/FuzzTwo belongs to no fuzz target"}},
	} {
		if diff := cmp.Diff(tc.want, problems(tc.dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Every package that has a fuzz target checks its seeds.
func TestEveryPackageChecks(t *testing.T) {
	packages := 0
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		found, err := targets(os.DirFS(path))
		if err != nil || len(found) == 0 {
			return err
		}
		packages++
		files, err := filepath.Glob(filepath.Join(path, "*_test.go"))
		if err != nil {
			return err
		}
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			if strings.Contains(string(content), "fuzzcorpus.Check(t)") {
				return nil
			}
		}
		t.Errorf("%s has the fuzz targets %v, and no test checks their seeds", path, found)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages < 5 {
		t.Errorf("only %d packages with fuzz targets were found", packages)
	}
}
