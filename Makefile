# Everything CI and people run. Budgets are minutes on two cores, downloads included.
#
#   make run       build, install what is missing, serve 1 GiB of memory over NVMe/TCP      (first time 5)
#   make test      unit and behaviour tests                                                 (8)
#   make fuzz      libFuzzer on what reads bytes from outside: FUZZ_TARGET="stream", FUZZ_SECONDS=60 for each       (10)
#   make check     format, lints, documentation, licences of dependencies                   (10)
#   make vm-test   real Linux hosts under QEMU: ONLY="tcp", KERNEL=6.1, SHORT=1, CASES="…"  (short 12, in full 60)
#   make bench     weft beside bare request/response servers, with ratios                   (8; QUICK=1: 2)

SHELL := /bin/bash
CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
WEFT := $(TARGET_DIR)/release/weft
DENY_VERSION := 0.20.2
CARGO_FUZZ_VERSION := 0.13.1
FUZZ_TARGET ?= stream command pipeline configuration
FUZZ_SECONDS ?= 60
export CARGO_TERM_PROGRESS_WHEN ?= auto

.PHONY: help run build test fuzz check vm-test bench bindings rdma-headers tools deny

help:
	@sed -n 's/^#   //p' Makefile

# A C linker is all a build needs beside Rust.
tools:
	@command -v cargo >/dev/null || { echo "Rust is missing: install it from https://rustup.rs" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "installing a C linker"; \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -qy gcc libc6-dev; \
	  else sudo apt-get update -q && sudo apt-get install -qy gcc libc6-dev; fi; }

build: tools
	$(CARGO) build --release --locked -p weft

run: build
	@exec $(WEFT) serve $(ARGS)

# cargo-nextest runs the tests side by side in processes of their own; without it cargo's own runner does.
test: tools
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	  $(CARGO) nextest run --locked --workspace --no-fail-fast; \
	else \
	  $(CARGO) test --locked --workspace --no-fail-fast; \
	fi

# A workspace of its own below tests/fuzz. libFuzzer needs what only a nightly compiler gives without RUSTC_BOOTSTRAP, and a
# C++ compiler. What is new goes into the corpus; `make test` replays it. An input that fails lies in tests/fuzz/artifacts.
fuzz: tools
	@command -v c++ >/dev/null || { echo "a C++ compiler is missing: install g++" >&2; exit 1; }
	@if [ ! -x build/tools/bin/cargo-fuzz ]; then \
	  echo "installing cargo-fuzz $(CARGO_FUZZ_VERSION) into build/tools"; \
	  $(CARGO) install --quiet --locked --debug --root build/tools --target-dir build/tools/target cargo-fuzz --version $(CARGO_FUZZ_VERSION); \
	fi
	@cd tests/fuzz && export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$(abspath build/fuzz) && for target in $(FUZZ_TARGET); do \
	  $(CURDIR)/build/tools/bin/cargo-fuzz run --fuzz-dir . $$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=20 || exit 1; \
	done

check: tools
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items --quiet
	@$(MAKE) --no-print-directory deny

# Licences, bans and sources need nothing but the lock file; advisories need a database that not every network has.
deny:
	@if ! $(CARGO) deny --version >/dev/null 2>&1 && [ ! -x build/tools/bin/cargo-deny ]; then \
	  echo "installing cargo-deny $(DENY_VERSION) into build/tools"; \
	  $(CARGO) install --quiet --locked --debug --root build/tools --target-dir build/tools/target cargo-deny --version $(DENY_VERSION); \
	fi
	PATH="$$PATH:$(CURDIR)/build/tools/bin" $(CARGO) deny --locked check licenses bans sources
	@if curl -sfI -m 5 https://github.com/RustSec/advisory-db >/dev/null 2>&1; then \
	  PATH="$$PATH:$(CURDIR)/build/tools/bin" $(CARGO) deny --locked check advisories; \
	else echo "advisories: skipped, their database cannot be reached from here"; fi

# Headers of rdma-core: a test compares the generated bindings with them. Nothing else needs them.
rdma-headers:
	@if [ ! -e /usr/include/infiniband/verbs.h ] || [ ! -e /usr/include/rdma/rdma_cma.h ]; then \
	  echo "installing rdma-core's headers"; \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -qy --no-install-recommends libibverbs-dev librdmacm-dev; \
	  else sudo apt-get update -q && sudo apt-get install -qy --no-install-recommends libibverbs-dev librdmacm-dev; fi; \
	fi

# Once in a while, for a newer rdma-core: needs its headers, libclang and bindgen (`cargo install bindgen-cli`).
bindings:
	transports/rdma/bindings/generate
	$(CARGO) fmt --all

vm-test: build
	@WEFT=$(abspath $(WEFT)) tests/vm/run

bench: tools
	$(CARGO) build --release --locked -p weft -p bench
	$(TARGET_DIR)/release/weft-bench compare --weft $(WEFT) $(if $(QUICK),--quick) $(BENCH)
