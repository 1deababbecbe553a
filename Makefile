# The front doors. Each calls what it needs first; `make setup` says what it installed.

SHELL := /bin/bash
# Where rustup puts cargo when a login shell has not been started since.
export PATH := $(PATH):$(HOME)/.cargo/bin

STATE_DIR ?= .holdfast
PROFILE ?= dev
# Of `make chaos`: how long, and which choices (a new seed when there is none).
SECONDS := 600
SEED :=
# Of the model, which it ends with; `make model` alone walks all but the large configurations.
STATES := 10000000
WALK := cargo run --locked --quiet --package model --features walk --
BIN := target/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/holdfast

.DEFAULT_GOAL := help
.PHONY: help setup build demo test teeth up down bench chaos model check sqlx

help: ## What there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | column -t -s "$$(printf '\t')" 2>/dev/null \
	  || sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1: \2/p' $(MAKEFILE_LIST)

setup: ## Install what is missing, and say so
	@scripts/setup.sh

build: setup ## Build the binary
	cargo build --locked --profile $(PROFILE) --workspace --bins
	@scripts/failpoints.sh without $(BIN)

demo: build ## The whole system, one flash sale with failures, a verdict; leaves nothing running
	@$(BIN) demo

up: build ## The whole system, left running; prints addresses and the next command
	@$(BIN) up --detach --state-dir $(STATE_DIR)

down: ## End what `make up` started
	@if [ -x $(BIN) ]; then $(BIN) down --state-dir $(STATE_DIR); \
	else echo "$(BIN) is not built: nothing can run" >&2; fi

test: ## Every test, on real servers
	@scripts/test.sh

teeth: ## Plant each bug of tests/teeth, and see its test fail
	@scripts/teeth.sh

model: ## Every state of the model (at least STATES=2000000), each broken rule found; the model against the code
	$(WALK) --all --mutations --states $(if $(filter command,$(firstword $(origin STATES))),$(STATES),2000000)
	@scripts/refinement.sh

check: ## Format, lints, crate edges, golden files, stale query cache
	@scripts/check.sh

bench: setup ## Paired benchmarks; writes target/bench/*.json
	cargo build --locked --release --package cli --bin holdfast
	@scripts/failpoints.sh without target/release/holdfast
	@target/release/holdfast bench

chaos: setup ## Faults, crashes and races under load for SECONDS=600, then the proof; SEED=N repeats a run
	cargo build --locked --workspace --bins --features cli/failpoints
	@target/debug/chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	$(WALK) --states $(STATES)

sqlx: setup ## Write the cache of checked SQL (.sqlx) after a query or a migration changed
	@scripts/sqlx.sh
