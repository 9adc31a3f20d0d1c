package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) healthCommand() *cobra.Command {
	var (
		ready   bool
		address string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Probe a running dispatcher; silent when it is well",
		Long: `Probe the dispatcher that runs with this configuration. Without --ready the process is
asked whether it lives, with it whether it does its work. Nothing is printed when all is well, so
that it can be the health check of a container.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if address == "" {
				cfg, err := a.load(a.configPath())
				if err != nil {
					return err
				}
				address = cfg.Server.Listen
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return probe(ctx, address, ready)
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether it does its work, not only whether it lives")
	cmd.Flags().StringVar(&address, "address", "", "host:port of the dispatcher (default server.listen of the configuration)")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for an answer")
	return cmd
}

// probe asks one question over HTTP.
func probe(ctx context.Context, address string, ready bool) error {
	if address == "none" {
		return failed(codeProbe, "set server.listen in the configuration", "the dispatcher has no HTTP listener")
	}
	path := "/healthz"
	if ready {
		path = "/readyz"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+dialable(address)+path, nil)
	if err != nil {
		return usage("cdc-dispatcher health --address 127.0.0.1:7788", "%q is not an address", address)
	}
	transport := &http.Transport{DisableKeepAlives: true} // no proxy: it is this machine's business
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return failed(codeProbe, "check that the dispatcher runs, and server.listen", "nothing answers at %s: %s", address, innermost(err))
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return failed(codeProbe, "look into the dispatcher's log", "the answer of %s broke off: %s", address, innermost(err))
	}
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	return failed(codeProbe, "cdc-dispatcher doctor", "%s", reasonsOf(body, resp.Status))
}

// reasonsOf makes one sentence of the body of /readyz.
func reasonsOf(body []byte, status string) string {
	var answer struct {
		Sources []struct {
			Name    string   `json:"name"`
			Ready   bool     `json:"ready"`
			Reasons []string `json:"reasons"`
		} `json:"sources"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Sources) == 0 {
		return "the dispatcher answers " + status
	}
	var parts []string
	for _, s := range answer.Sources {
		if !s.Ready {
			parts = append(parts, fmt.Sprintf("source %s is not ready: %s", s.Name, strings.Join(s.Reasons, "; ")))
		}
	}
	return strings.Join(parts, ". ")
}

// dialable turns an address to listen on into one to connect to.
func dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
