package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestDocs_Configuration validates each whole file that docs/configuration.md prints.
func TestDocs_Configuration(t *testing.T) {
	bin := buildProgram(t)
	files := 0
	for _, b := range readPage(t, "configuration.md").blocks {
		if b.language != "yaml" {
			continue
		}
		files++
		name := filepath.Join(t.TempDir(), "page.yaml")
		if err := os.WriteFile(name, []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "cdc-dispatcher"), "validate", name)
		cmd.Env = append(os.Environ(), "DATABASE_URL=postgres://app@db/shop", "BILLING_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s\n%s", err, b.text, out)
		}
	}
	if files == 0 {
		t.Error("the page has no YAML to validate")
	}
}
