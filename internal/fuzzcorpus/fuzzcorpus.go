package fuzzcorpus

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Least is how many seeds a target has at least that hold anything.
const Least = 3

// header is the first line of a seed; see "go help testflag", -fuzz.
const header = "go test fuzz v1"

var (
	targetForm = regexp.MustCompile(`(?m)^func (Fuzz[A-Za-z0-9_]*)\(`)
	// emptyForm is a value that holds nothing.
	emptyForm = regexp.MustCompile(`^[a-z0-9\[\]]+\((""|0|false|'\\x00')\)$`)
)

// Check fails the test for every fuzz target of the package in the working directory, which is
// the package under test, that lacks seeds.
func Check(t testing.TB) {
	t.Helper()
	for _, problem := range problems(os.DirFS(".")) {
		t.Error(problem)
	}
}

// problems is what Check reports of a package's folder.
func problems(dir fs.FS) []string {
	found, err := targets(dir)
	if err != nil {
		return []string{err.Error()}
	}
	if len(found) == 0 {
		return []string{"there is no fuzz target: the test checks nothing"}
	}
	var all []string
	for _, name := range found {
		all = append(all, seedProblems(dir, name)...)
	}
	folders, err := fs.Glob(dir, "testdata/fuzz/*")
	if err != nil {
		return append(all, err.Error())
	}
	for _, folder := range folders {
		if !slices.Contains(found, path.Base(folder)) {
			all = append(all, folder+" belongs to no fuzz target")
		}
	}
	return all
}

// targets are the names of the fuzz targets in the test files of a folder.
func targets(dir fs.FS) ([]string, error) {
	files, err := fs.Glob(dir, "*_test.go")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, file := range files {
		content, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		for _, m := range targetForm.FindAllSubmatch(content, -1) {
			names[string(m[1])] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// seedProblems is what is wrong with the seeds of one target.
func seedProblems(dir fs.FS, target string) (all []string) {
	files, err := fs.Glob(dir, path.Join("testdata/fuzz", target, "*"))
	if err != nil {
		return []string{err.Error()}
	}
	full := 0
	for _, file := range files {
		content, err := fs.ReadFile(dir, file)
		if err != nil {
			all = append(all, err.Error())
			continue
		}
		first, values, _ := strings.Cut(strings.TrimSpace(string(content)), "\n")
		if first != header || values == "" {
			all = append(all, file+" is not a seed that go test can read")
			continue
		}
		if slices.ContainsFunc(strings.Split(values, "\n"), func(v string) bool { return !emptyForm.MatchString(v) }) {
			full++
		}
	}
	if full < Least {
		all = append(all, fmt.Sprintf("%s has %d seeds that hold anything, want at least %d in testdata/fuzz/%[1]s", target, full, Least))
	}
	return all
}
