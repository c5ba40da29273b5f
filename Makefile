# Few targets, and each says what it does: `make help`.
# What can be made again is kept in ~/.cache/cadre (CADRE_CACHE moves it), keyed by what it is made from.

CADRE_CACHE ?= $(HOME)/.cache/cadre
# One target folder for a set of dependencies and a compiler, so that a fresh checkout finds them compiled.
key := $(shell (grep ^checksum Cargo.lock; rustc -vV) | sha256sum | cut -c 1-16)
export CARGO_TARGET_DIR ?= $(CADRE_CACHE)/target/$(key)
export CADRE_CACHE

.DEFAULT_GOAL := help
.PHONY: help quickstart test check up down status images dev bench

help: ## Show this
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'

quickstart: ## A Kubernetes on this machine, Cadre on it, and an agent's answer
	@cargo xtask quickstart

test: ## Checks and every test, those on the cluster included; ends with one summary line
	@cargo xtask test

check: ## Formatting and lints only
	@cargo xtask test --only checks

up: ## Start the cluster and install Cadre, without the example
	@cargo xtask quickstart --install-only

down: ## Stop the cluster and remove all that it made on this machine
	@cargo xtask cluster down

status: ## What runs in the cluster
	@cargo xtask cluster status

images: ## Make the images as OCI archives
	@cargo xtask images

dev: ## Serve examples/quickstart from this machine's processes: no cluster, no root
	@cargo run --quiet --bin cadre -- dev examples/quickstart

bench: ## Measure, and print one table
	@cargo xtask bench
