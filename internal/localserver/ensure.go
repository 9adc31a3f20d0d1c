package localserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ImageVariable names the environment variable with the image that
// EnsurePostgres uses when there is nothing but a container engine.
const ImageVariable = "CDC_DISPATCHER_POSTGRES_IMAGE"

const defaultImage = "postgres:18"

// EnsurePostgres returns a PostgreSQL that StartPostgres can start, and gets
// one if need be: the newest local one; else, for root on Debian and its
// relatives, what apt-get installs (the programs only: no cluster, no service);
// else an image for a container engine that answers. It tells log, in a few
// words, what it does. When all fails, the error says what to install here.
func EnsurePostgres(ctx context.Context, log func(string)) (Install, error) {
	if found := FindPostgres(ctx); len(found) > 0 {
		return found[0], nil
	}
	var failed []error
	if os.Geteuid() == 0 && isDebian() {
		log("no PostgreSQL found: installing it with apt-get")
		err := installWithApt(ctx, log)
		if found := FindPostgres(ctx); len(found) > 0 {
			return found[0], nil
		}
		failed = append(failed, cmp.Or(err, errors.New("apt-get installed no server")))
	}
	if err := ctx.Err(); err != nil {
		return Install{}, err
	}
	if eng := findEngine(ctx); eng != "" {
		image := cmp.Or(os.Getenv(ImageVariable), defaultImage)
		log(fmt.Sprintf("no PostgreSQL found: using %s with the image %s", eng, image))
		err := eng.ensureImage(ctx, image, log)
		if err == nil {
			return Install{Image: image}, nil
		}
		failed = append(failed, err)
	} else {
		failed = append(failed, errors.New("no container engine answers"))
	}
	return Install{}, fmt.Errorf("%w (wanted: PostgreSQL); %s (tried: %w)", ErrNotFound, howToInstall(0), errors.Join(failed...))
}

func isDebian() bool {
	_, err := os.Stat("/etc/debian_version")
	_, errApt := exec.LookPath("apt-get")
	return err == nil && errApt == nil
}

// clusterConfig keeps the package from making and starting a cluster of its
// own, which would take the default port.
const clusterConfig = "/etc/postgresql-common/createcluster.conf"

func installWithApt(ctx context.Context, log func(string)) error {
	if _, err := os.Stat(clusterConfig); errors.Is(err, os.ErrNotExist) {
		text := "# Written by cdc-dispatcher: only the server programs are wanted.\ncreate_main_cluster = false\n"
		if err := os.MkdirAll(filepath.Dir(clusterConfig), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(clusterConfig, []byte(text), 0o644); err != nil {
			return err
		}
	}
	install := []string{"install", "--yes", "--no-install-recommends", "postgresql"}
	err := apt(ctx, install...)
	if err != nil && ctx.Err() == nil {
		log("reading the package lists (apt-get update)")
		if err = apt(ctx, "update"); err == nil {
			err = apt(ctx, install...)
		}
	}
	return err
}

func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet=2", "--option=DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "UCF_FORCE_CONFFOLD=1", "LC_ALL=C")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLines(out.Bytes(), 5))
	}
	return nil
}
