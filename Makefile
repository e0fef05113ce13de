# The front door. Every target does its own set-up; `make help` lists them.
#
# A fresh Debian 12 with Rust from rustup needs nothing else installed by hand: tools/setup fetches a
# C compiler and linker through apt where they are missing.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO ?= cargo
RELEASE := target/release

.DEFAULT_GOAL := help
.PHONY: help setup oracle kernel advisories build test test-kernel test-install test-mount test-daemon test-writing-all test-check test-scale demo bench bench-write bench-mount bench-many bench-scan bench-features bench-send bench-count bench-plots flame pages install uninstall deb test-deb test-unit static test-static fuzz fuzz-soak soak soak-threads test-threads test-policy zts mutants lint golden golden-pools clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup:
	@tools/setup

oracle: ## fetch OpenZFS's programs (zdb, zstream, ...) to compare with; nothing is installed
	@tools/oracle/fetch

kernel: ## make the virtual machines with the kernel modules of OpenZFS 2.3 and 2.4 (minutes)
	@tools/kernel/setup
	@MILLPOND_ZFS=2.4 tools/kernel/setup

advisories: ## known vulnerabilities of dependencies (needs `cargo install --locked cargo-deny` and RustSec's database from GitHub)
	@$(CARGO) deny --version >/dev/null 2>&1 || { echo "cargo-deny is missing: cargo install --locked cargo-deny"; exit 1; }
	$(CARGO) deny check advisories

PREFIX ?= /usr/local
BIN := $(DESTDIR)$(PREFIX)/bin
SBIN := $(DESTDIR)$(PREFIX)/sbin
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system
PRESETS := $(DESTDIR)$(PREFIX)/lib/systemd/system-preset
SHARE := $(DESTDIR)$(PREFIX)/share
DOC := $(SHARE)/doc/millpond
PAGES := target/pages
# Where the shells look for completions.
COMPLETIONS := $(SHARE)/bash-completion/completions $(SHARE)/zsh/vendor-completions $(SHARE)/fish/vendor_completions.d

pages: setup ## manual pages and shell completions in target/pages
	@$(CARGO) run --quiet --release --locked --package millpond-pages -- $(PAGES)

install: build pages ## install programs, systemd unit, manual pages, completions and docs below PREFIX (/usr/local); NAMES=1: the names zpool, zfs and mount.zfs too
	install -d $(BIN) $(UNITS) $(PRESETS) $(DOC) $(SHARE)/man/man1 $(SHARE)/man/man8 $(COMPLETIONS)
	install -m 755 $(RELEASE)/millpond $(RELEASE)/millpondd $(BIN)
	@if command -v strip >/dev/null; then strip $(BIN)/millpond $(BIN)/millpondd; fi
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/systemd/millpondd.service > $(UNITS)/millpondd.service
	install -m 644 packaging/systemd/50-millpond.preset $(PRESETS)
	install -m 644 docs/*.md COMPATIBILITY.md CHANGELOG.md $(DOC)
	install -m 644 $(PAGES)/man1/* $(SHARE)/man/man1
	install -m 644 $(PAGES)/man8/* $(SHARE)/man/man8
	install -m 644 $(PAGES)/bash/millpond $(word 1,$(COMPLETIONS))
	install -m 644 $(PAGES)/zsh/_millpond $(word 2,$(COMPLETIONS))
	install -m 644 $(PAGES)/fish/millpond.fish $(word 3,$(COMPLETIONS))
	@if [ -n "$(NAMES)" ]; then install -d $(SBIN); \
		if [ -e $(SBIN)/mount.zfs ] && [ "$$(readlink $(SBIN)/mount.zfs)" != ../bin/millpond ]; then \
			echo "$(SBIN)/mount.zfs is another program's: remove it first, or install below another PREFIX"; exit 1; fi; \
		ln -sf ../bin/millpond $(SBIN)/mount.zfs || exit 1; \
		for name in zpool zfs; do \
		if [ -e $(BIN)/$$name ] && [ "$$(readlink $(BIN)/$$name)" != millpond ]; then \
			echo "$(BIN)/$$name is another program's: remove it first, or install below another PREFIX"; exit 1; fi; \
		ln -sf millpond $(BIN)/$$name || exit 1; \
		install -m 644 $(PAGES)/bash/$$name $(word 1,$(COMPLETIONS)) && \
		install -m 644 $(PAGES)/zsh/_$$name $(word 2,$(COMPLETIONS)) && \
		install -m 644 $(PAGES)/fish/$$name.fish $(word 3,$(COMPLETIONS)) || exit 1; done; fi
	@echo "installed; pools at boot: systemctl enable --now millpondd"

uninstall: ## remove what install put below PREFIX; pools and /var/lib/millpond stay
	rm -f $(BIN)/millpond $(BIN)/millpondd $(UNITS)/millpondd.service $(PRESETS)/50-millpond.preset
	@if [ "$$(readlink $(SBIN)/mount.zfs)" = ../bin/millpond ]; then rm -f $(SBIN)/mount.zfs; fi
	@for name in zpool zfs; do if [ "$$(readlink $(BIN)/$$name)" = millpond ]; then rm -f $(BIN)/$$name \
		$(word 1,$(COMPLETIONS))/$$name $(word 2,$(COMPLETIONS))/_$$name $(word 3,$(COMPLETIONS))/$$name.fish; fi; done
	rm -f $(patsubst docs/%,$(DOC)/%,$(wildcard docs/*.md)) $(DOC)/COMPATIBILITY.md $(DOC)/CHANGELOG.md
	rm -f $(SHARE)/man/man1/millpond.1 $(SHARE)/man/man1/millpond-*.1 $(SHARE)/man/man8/millpond*.8
	rm -f $(word 1,$(COMPLETIONS))/millpond $(word 2,$(COMPLETIONS))/_millpond $(word 3,$(COMPLETIONS))/millpond.fish
	-@rmdir $(DOC) $(COMPLETIONS) 2>/dev/null || true

deb: build pages ## Debian packages in target/deb: millpond, and millpond-zfs with the names zpool, zfs and mount.zfs
	@packaging/deb $(RELEASE) $(PAGES) target/deb

test-deb: deb ## install the packages in a fresh Debian root, use a pool, restart, remove (root; fetches Debian with mmdebstrap)
	@packaging/deb-try target/deb

test-unit: deb ## run the unit under systemd in a booted container, power it off, boot it again (root, /dev/fuse; fetches Debian with mmdebstrap)
	@packaging/unit-try target/deb

static: setup ## programs that need no library, in target/static (needs musl-tools; fetches Rust's musl target)
	@packaging/static target/static

test-static: static ## use the static programs in an empty root (root, /dev/fuse)
	@packaging/static-try target/static

build: setup ## target/release/millpond, and zpool and zfs beside it
	$(CARGO) build --release --locked --package millpond-cli --package millpond-daemon
	@ln -sf millpond $(RELEASE)/zpool
	@ln -sf millpond $(RELEASE)/zfs

# Documentation examples first, so that the last line is the last suite's result. The oracle's
# programs are welcome but not needed: tests that use them say so when they are absent (code 75).
test: setup ## every test
	@tools/oracle/fetch || [ $$? -eq 75 ]
	$(CARGO) test --workspace --locked --doc
	$(CARGO) test --workspace --locked --lib --bins --tests

test-daemon: setup ## the daemon killed repeatedly, mounted, and used by other users (needs /dev/fuse and root)
	$(CARGO) test --locked --package millpond-cli --test life -- --ignored --nocapture --test-threads 1
	$(CARGO) test --locked --package millpond-cli --test faulty_disks -- --ignored --nocapture
	$(CARGO) test --locked --package millpond-cli --test dying_disks -- --ignored --nocapture --test-threads 1
	$(CARGO) test --locked --package millpond-cli --test little_memory -- --ignored --nocapture

test-install: build pages ## install below a temporary prefix, run as the unit and as an ordinary user, uninstall (root, /dev/fuse)
	@packaging/try $(RELEASE)

test-policy: setup ## sanoid, syncoid and others, unchanged, with our zpool and zfs (a minute; root, /dev/fuse)
	@tools/oracle/fetch || [ $$? -eq 75 ]
	$(CARGO) test --locked --package millpond-cli --test policy -- --ignored --test-threads 1

test-kernel: setup ## pools exchanged with OpenZFS's kernel modules (minutes; needs `make kernel`)
	$(CARGO) test --locked --package millpond-tests --test kernel -- --ignored --test-threads 1

test-mount: setup ## file systems mounted through FUSE, used by real programs (minutes; root, /dev/fuse; `cargo install pjdfstest` for its part)
	@tools/oracle/fetch || [ $$? -eq 75 ]
	for layout in $${MILLPOND_MOUNT_LAYOUT:-single mirror raidz2}; do \
	    echo "== $$layout"; MILLPOND_MOUNT=full MILLPOND_MOUNT_LAYOUT=$$layout \
	    $(CARGO) test --locked --package millpond-tests --test mount -- --test-threads 1 || exit 1; done

test-writing-all: setup ## writing at full size: every golden case, more seeds, every crash checked (tens of minutes)
	@tools/oracle/fetch || [ $$? -eq 75 ]
	MILLPOND_WRITING_ALL=1 MILLPOND_WRITING_SEEDS=$${MILLPOND_WRITING_SEEDS:-8} \
		$(CARGO) test --locked --package millpond-tests --test writing --test adopted -- --test-threads 2

test-check: setup ## the checker and zdb compared on every golden case and on random damage (minutes)
	@tools/oracle/fetch || [ $$? -eq 75 ]
	MILLPOND_CASES=all $(CARGO) test --locked --package millpond-tests --test check -- --include-ignored

test-scale: setup ## very many files, datasets and bytes (slow; needs 8 GB of disk and memory)
	@MILLPOND_SCALE=full $(CARGO) test --release --locked --package millpond-tests --test scale -- --test-threads=1 --nocapture

demo: build ## open, list, verify and copy out of real pools; then create and change a pool, checked by zdb
	@demo/run

bench: build ## measure Millpond and its rivals; writes BENCHMARKS.md
	@tools/oracle/fetch || [ $$? -eq 75 ]
	@bench/run
	@bench/write
	@bench/scan
	@bench/features
	@bench/mount
	@mkdir -p target/bench && bench/mount --folder target/bench
	@BENCH_SEND_MB=1000 bench/send --only send,receive
	@bench/send --folder target/bench

bench-write: setup ## only the writing engine, Btrfs and XFS
	@bench/write

bench-mount: build ## only mounted file systems: Millpond, zfs-fuse, Btrfs, XFS and ext4 (root, /dev/fuse)
	@bench/mount
	@mkdir -p target/bench && bench/mount --folder target/bench

bench-many: build ## a tree of BENCH_MANY (1,000,000) files on Millpond, zfs-fuse, Btrfs and XFS (40 minutes a round; 30 GB of disk; root, /dev/fuse)
	@mkdir -p target/bench && bench/mount --many --folder target/bench

bench-scan: setup ## scrubs and resilvers beside what the devices give (10 minutes; 14 GB of disk)
	@bench/scan

bench-features: setup ## dedup, clones, encryption, removed and expanded vdevs beside the same work without them (2 minutes; 12 GB of disk)
	@bench/features

bench-send: build ## send and receive beside zfs-fuse and tar, increments, many snapshots, stored streams (an hour; 25 GB of disk, 6 GB of memory; root, /dev/fuse)
	@mkdir -p target/bench
	@BENCH_SEND_MB=1000 bench/send --only send,receive
	@bench/send --folder target/bench

bench-count: setup ## instructions of small benchmarks under valgrind, compared with bench/counts.md; ONLY=files selects, WRITE=1 replaces the table
	$(CARGO) build --quiet --release --locked --package millpond-bench --bin count
	@$(RELEASE)/count --table bench/counts.md $(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write) || [ $$? -eq 75 ]

bench-plots: setup ## draw the charts in docs/plots from the tables of BENCHMARKS.md
	$(CARGO) run --quiet --locked --package millpond-bench --bin plots -- BENCHMARKS.md docs/plots

flame: setup ## a flame graph of a benchmark in target/flame: WORK="count files/create 20000" (bench/flame lists the kinds)
	@bench/flame $(or $(WORK),$(error WORK=... is missing: see bench/flame))

fuzz: setup ## every fuzz target for FUZZ_SECONDS (default 20) each
	@fuzz/run

soak: setup ## simulated workloads on simulated disks for SOAK_SECONDS (default 3 hours); results go to docs/soak.md
	$(CARGO) run --release --locked --package millpond-tests --bin soak -- --seconds $${SOAK_SECONDS:-10800} --from $${SOAK_FROM:-1} --record docs/soak.md

# The seeded scheduler needs a build of its own, in its own directory. It is faster on one processor.
SIM := RUSTFLAGS="--cfg millpond_sim" CARGO_TARGET_DIR=$(CURDIR)/target/sim
ONE := $(shell command -v taskset >/dev/null && echo taskset -c 0)

soak-threads: setup ## concurrent workloads under the seeded scheduler for SOAK_SECONDS (default 1 hour); results go to docs/soak.md
	$(SIM) $(CARGO) build --release --locked --package millpond-tests --bin soak
	$(ONE) target/sim/release/soak --target 0 --threads-target 100000000 --seconds $${SOAK_SECONDS:-3600} --from $${SOAK_FROM:-1} --record docs/soak.md

test-threads: setup ## the seeded scheduler, the simulated world and short soak runs (a second build: minutes)
	$(SIM) $(CARGO) test --release --locked --package millpond-env --package millpond-sim
	$(SIM) $(CARGO) test --release --locked --package millpond-tests --test soak

fuzz-soak: setup ## every fuzz target for hours: FUZZ_SECONDS=1200 unless set
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-1200} fuzz/run

zts: build ## OpenZFS's own test suite against our commands, in containers (1 to 2 hours; root, /dev/fuse, loop devices); writes docs/conformance.md; ONLY="cli_root/zpool_*" selects
	@tools/zts/setup
	@tools/zts/run $(if $(ONLY),$(ONLY),--page docs/conformance.md)

mutants: setup ## mutations that the unit tests of the pure crates do not detect (hours; `cargo install cargo-mutants`); MUTANTS="-p millpond-nvlist" selects
	ulimit -v 5000000; PROPTEST_DISABLE_FAILURE_PERSISTENCE=true cargo mutants $${MUTANTS:--p millpond-nvlist -p millpond-ondisk -p millpond-checksum -p millpond-compress -p millpond-crypt -p millpond-parity} --timeout 20 --output target/mutants -- --lib

lint: setup ## formatting, clippy, the rules of the repository, dependencies (with cargo-deny where it is installed)
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(SIM) $(CARGO) check --locked --package millpond-tests --bin soak
	$(CARGO) run --quiet --locked --package xtask -- check
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		echo $(CARGO) deny check licenses bans sources; \
		$(CARGO) deny --log-level error check licenses bans sources; \
	else echo "cargo-deny is missing: only the licences were checked"; fi

golden: setup ## only the comparison with the golden pools
	$(CARGO) test --locked --package millpond-tests

golden-pools: kernel ## make pools with OpenZFS's module and a record of their contents (tools/golden), and compare Millpond with them
	tools/golden/make
	MILLPOND_GOLDEN=$(CURDIR)/target/golden-made $(CARGO) test --locked --package millpond-tests --test golden -- golden::

clean: ## remove what was built (the oracle's cache stays; see tools/oracle/where)
	$(CARGO) clean
	rm -rf fuzz/target
