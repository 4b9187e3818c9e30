# `make` or `make help` lists the targets. Nothing here installs anything but `deps`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# What tests run: a package pattern, and flags for go test.
#   make test PKG=./dedup/... TESTFLAGS='-run TestClaim -v'
PKG ?= ./...
TESTFLAGS ?=
# Two packages at a time: each of them starts connections, some start servers.
PARALLEL ?= 2
TIMEOUT ?= 20m
# Passed on to `claimq bench` and `claimq demo`.
ARGS ?=

STACK := go run ./internal/cmd/teststack
LINT := go tool -modfile=tools/go.mod golangci-lint

##@ Every day

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z][a-z-]*:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Run the demo: Kafka, Postgres, 50,000 orders, the account
	go run ./cmd/claimq demo $(ARGS)

.PHONY: test
test: needs ## Run every test, with the race detector, on a real Postgres, Kafka and PgBouncer
	$(STACK) -- go test -race -count=1 -p $(PARALLEL) -timeout $(TIMEOUT) $(TESTFLAGS) $(PKG)

.PHONY: test-postgres
test-postgres: ## Run the tests of PKG with a Postgres only and without the race detector: quick, while one writes
	$(STACK) -kafka=false -pgbouncer=false -- go test -p $(PARALLEL) -timeout $(TIMEOUT) $(TESTFLAGS) $(PKG)

.PHONY: lint
lint: ## Run golangci-lint, pinned in tools/go.mod (the first run builds it: minutes)
	$(LINT) run $(PKG)

.PHONY: fmt
fmt: ## Format the code as the linter wants it
	$(LINT) fmt

.PHONY: bench
bench: needs ## Measure claimq against bare SQL on this machine (ARGS='--help' tells how)
	$(STACK) -- sh -c 'go run ./cmd/claimq bench --brokers "$$CLAIMQ_TEST_KAFKA" --dsn "$$CLAIMQ_TEST_DSN" $(ARGS)'

.PHONY: build
build: ## Build the command into bin/claimq
	go build -trimpath -o bin/claimq ./cmd/claimq

##@ Before a commit

.PHONY: check
check: tidy-check lint test ## All that CI runs

.PHONY: tidy-check
tidy-check: ## Fail when go.mod and go.sum are not as `go mod tidy` leaves them
	go mod tidy -diff

.PHONY: generate
generate: ## Write docs/configuration.md and the other pages that are made from the code
	go test -count=1 ./cmd/claimq/cli -run TestTheReferencePage -update

##@ A stack to develop on

.PHONY: deps
deps: ## Install what the tests need and this Debian lacks, as root
	.ci/deps install

.PHONY: needs
needs: ## Say what the tests need and this machine lacks
	@.ci/deps check

.PHONY: up
up: postgres-up kafka-up ## Start a Postgres and a Kafka that stay up

.PHONY: down
down: kafka-down postgres-down ## Stop both and remove their data

.PHONY: postgres-up
postgres-up: ## Start a Postgres on a free port and say where it is
	deploy/postgres/postgres start

.PHONY: postgres-down
postgres-down: ## Stop it and remove its data
	deploy/postgres/postgres stop

.PHONY: kafka-up
kafka-up: ## Start a Kafka on free ports and say where it is (ARGS='--brokers 3' for three)
	deploy/kafka/kafka start $(ARGS)

.PHONY: kafka-down
kafka-down: ## Stop it and remove its data
	deploy/kafka/kafka stop

.PHONY: status
status: ## Say which of them are up
	deploy/postgres/postgres status
	deploy/kafka/kafka status
