# Needs Go and, for `make test` and `make demo`, whatever scripts/install-servers.sh
# and the demo find or install themselves. `make` alone prints this list.

SHELL   := /bin/bash
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

GOLANGCI_LINT := v2.15.0
GOVULNCHECK   := v1.9.0

PKG       ?= ./...
# More test binaries than cores: most of a test is waiting for a server. Each may have
# servers of its own to feed, so not many more.
TESTFLAGS ?= -race -count=1 -timeout=60m -p=3 -parallel=4
FUZZTIME  ?= 30s
SOAK      ?= 1h
ARGS      ?=
BENCH     ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: servers ## install the servers that are missing, run every test with the race detector
	@scripts/test.sh $(TESTFLAGS) $(PKG)

.PHONY: servers
servers: ## only install the servers that the tests want
	@scripts/install-servers.sh || echo "install-servers failed: tests of missing servers are skipped, or fail where CI is set"

.PHONY: demo
demo: build ## watch it work: throw-away server, producer, four handlers, live view (ARGS="--for 15s --database mariadb")
	@dist/cdc-dispatcher demo $(ARGS)

.PHONY: build
build: ## the static binary, dist/cdc-dispatcher
	@mkdir -p dist
	@CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o dist/cdc-dispatcher ./cmd/cdc-dispatcher

.PHONY: image
image: ## container images cdc-dispatcher:local and cdc-dispatcher-receiver:local, without pulling any
	scripts/rootfs.sh dist/rootfs ./cmd/cdc-dispatcher $(VERSION)
	docker build --target binary --tag cdc-dispatcher:local .
	scripts/rootfs.sh dist/rootfs ./examples/receiver $(VERSION)
	docker build --target binary --tag cdc-dispatcher-receiver:local .
	@rm -rf dist/rootfs

.PHONY: lint
lint: ## gofmt, golangci-lint and govulncheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi
	@if golangci-lint version 2>/dev/null | grep -q "version $(GOLANGCI_LINT:v%=%) "; then \
		lint="golangci-lint run"; \
	else \
		lint="go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT) run"; \
	fi; $$lint $(PKG) && cd bench && $$lint
	@go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK) $(PKG) || { rc=$$?; \
		[ $$rc != 3 ] && echo "govulncheck could not check (no network?); nothing is known about vulnerabilities"; [ $$rc != 3 ]; }

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s)
	@set -euo pipefail; \
	for pkg in $$(go list -f '{{.Dir}}' $(PKG)); do \
		for target in $$(cat $$pkg/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p'); do \
			echo "== $$target in $$pkg"; \
			go test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) $$pkg; \
		done; \
	done

.PHONY: soak
soak: servers ## the guarantee tests at full size; RUN picks some, SOAK says for how long (1h)
	@SOAK=$(SOAK) scripts/test.sh -race -count=1 -timeout=0 -p=1 -v $(if $(RUN),-run='$(RUN)') ./test/integration/... ./test/containers/... ./cdc/...

.PHONY: bench
bench: servers ## measure beside River and others, bench/results.json (BENCH="-only drain -events 20000")
	@cd bench && go run . -out results.json $(BENCH)

.PHONY: cover
cover: servers ## test coverage, dist/cover.html
	@mkdir -p dist
	@scripts/test.sh $(TESTFLAGS) -covermode=atomic -coverpkg=$(PKG) -coverprofile=dist/cover.out $(PKG)
	@go tool cover -func=dist/cover.out | tail -n 1
	@go tool cover -html=dist/cover.out -o dist/cover.html

.PHONY: clean
clean: ## remove what was built (not the servers)
	@rm -rf dist
