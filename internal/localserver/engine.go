package localserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// engine is the command line program of a container engine. The program, and
// not the engine's API, because it knows the user's contexts, credentials and
// remote hosts, and because nothing else here needs the API.
type engine string

// findEngine is the first engine that answers; empty when none does.
func findEngine(ctx context.Context) engine {
	for _, name := range []string{"docker", "podman"} {
		if _, err := exec.LookPath(name); err != nil {
			continue
		}
		probe, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := engine(name).run(probe, "version", "--format", "{{.Server.Version}}")
		cancel()
		if err == nil {
			return engine(name)
		}
	}
	return ""
}

// run executes one engine command and returns what it printed.
func (e engine) run(ctx context.Context, args ...string) (string, error) {
	return e.runWithInput(ctx, nil, args...)
}

func (e engine) runWithInput(ctx context.Context, input []byte, args ...string) (string, error) {
	if e == "" {
		return "", errors.New("no container engine answers")
	}
	cmd := exec.CommandContext(ctx, string(e), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", e, args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// ensureImage pulls an image unless it is there.
func (e engine) ensureImage(ctx context.Context, image string, log func(string)) error {
	if _, err := e.run(ctx, "image", "inspect", "--format", "{{.Id}}", image); err == nil {
		return nil
	}
	log(fmt.Sprintf("pulling %s", image))
	_, err := e.run(ctx, "pull", "--quiet", image)
	return err
}
