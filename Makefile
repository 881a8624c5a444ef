# outbox_relay: build, install, try and test. The two commands to know: make demo, make test.
# Each target installs what it lacks, does only what is left to do, and says how long that took.

PG_CONFIG ?= pg_config
DESTDIR ?=

export PG_CONFIG DESTDIR
# pgrx builds for the PostgreSQL that this names; a change of the value rebuilds a good part of it. Looked up anew for each
# command, because the first ones may install it.
export PGRX_PG_CONFIG_PATH = $(shell command -v $(PG_CONFIG) 2>/dev/null)
# cargo and librdkafka's own make decide themselves how many jobs they run.
unexport MAKEFLAGS MFLAGS
.NOTPARALLEL:
SHELL := /bin/bash

started := $(shell date +%s)
step := pg_test/bin/step
total = s=$$(($$(date +%s) - $(started))); printf '\n%s in %d min %d s\n' '$(1)' $$((s / 60)) $$((s % 60))
with_state := pg_test/bin/with-state
extension := --release -p outbox_relay
pg_test := --release -p outbox_relay_pg_test

.PHONY: help prepare build install servers test-hooks test check-pure check-kafka lint demo psql listen stop bench bench-full \
	profile debezium soak clean check-simulated simulate simulate-mutations

help:
	@echo 'make demo        a message from a SQL transaction to a Kafka consumer, through an outage and a crash'
	@echo 'make test        lint and all tests: the rules alone, every SQL object, whole clusters with a real broker'
	@echo
	@echo 'make psql        psql on the demo'
	@echo 'make listen      print what reaches the Kafka of the demo'
	@echo 'make stop        stop the servers of the demo'
	@echo 'make bench       compare with the raw limits and with Debezium, in about 10 minutes; make bench-full: all cases, less than 2 hours, into docs/performance.md'
	@echo 'make profile     a flame graph of a relay that drains a backlog: docs/performance-profile.svg, or PROFILE=FILE.svg'
	@echo 'make soak        the cluster tests, the long way; SOAK_MINUTES=N (default 5) is the length of an outage'
	@echo
	@echo 'make build       build the extension; then, as who may write there: make install'
	@echo 'make install     install it into the PostgreSQL of PG_CONFIG=... (default: pg_config), below DESTDIR=... if set'
	@echo 'make lint        formatting and clippy, warnings denied'
	@echo 'make check-pure  the tests of the rules alone: no PostgreSQL, no Kafka'
	@echo 'make simulate SEEDS=N [FROM=seed] [TRACE=1]'
	@echo '                 search the simulated world for a schedule that breaks a promise; see docs/simulation.md'
	@echo 'make clean       stop the demo, remove what demo, tests and compiler made'

# What has to be installed beforehand depends on what was asked for.
need = build servers
build lint: need = build
check-pure check-simulated simulate simulate-mutations: need = pure

prepare:
	@$(step) 'Checking what is installed ($(need))' pg_test/bin/prepare $(need)

# The extension

build: prepare
	@$(step) 'Building the extension' cargo build $(extension)

install:
	@$(step) 'Installing the extension' pg_test/bin/install $(PG_CONFIG)

# Tests

test: prepare lint check-pure check-simulated check-kafka servers test-hooks
	@$(step) 'Testing the checkers' cargo test $(pg_test) --lib --bin bench
	@$(step) 'Testing every SQL object' $(with_state) pg_test/bin/regress
	@$(step) 'Testing the guarantees on whole clusters' $(with_state) cargo test $(pg_test) --test cluster
	@$(call total,All tests passed)

lint: prepare
	@$(step) 'Checking the format' cargo fmt --all --check
	@$(step) 'Clippy: the extension' cargo clippy $(extension) --all-targets -- -D warnings
	@$(step) 'Clippy: the extension with test hooks' cargo clippy $(extension) --all-targets --features test-hooks -- -D warnings
	@$(step) 'Clippy: the rules alone' cargo clippy $(extension) --all-targets --no-default-features -- -D warnings
	@$(step) 'The documentation of the rules' env RUSTDOCFLAGS='-D warnings' cargo doc --no-default-features --no-deps
	@$(step) 'Clippy: the simulation' cargo clippy $(extension) --bin simulate --no-default-features --features simulate -- -D warnings
	@$(step) 'Clippy: tests, demo and benchmark' cargo clippy $(pg_test) --all-targets -- -D warnings

check-pure: prepare
	@$(step) 'Testing the rules alone' cargo test --no-default-features

# The simulation

simulator := cargo run -q --release --no-default-features --features simulate --bin simulate --
FROM ?= 0
SEEDS ?= 100000
TRACE ?=

check-simulated: prepare
	@$(step) 'Searching 20,000 simulated schedules' $(simulator) 0 20000

simulate: prepare
	@$(simulator) $(FROM) $(SEEDS) $(if $(filter-out 0,$(TRACE)),trace)

# The table of src/simulate/mutations.rs, made anew.
simulate-mutations: prepare
	@$(simulator) 0 $(SEEDS) mutations

check-kafka: prepare
	@$(step) 'Testing the wall to Kafka' cargo test --release --no-default-features --features kafka --lib kafka::

SOAK_MINUTES ?= 5

soak: servers test-hooks
	@OUTBOX_RELAY_SOAK=$(SOAK_MINUTES) $(step) 'Testing the guarantees the long way' $(with_state) cargo test $(pg_test) --test cluster
	@$(call total,Soak tests passed)

# Demo and benchmark

# A private PostgreSQL with the extension in it, Kafka's jars, and the programs that start and use both.
servers: prepare
	@$(step) 'Fetching Kafka' pg_test/bin/fetch-jars kafka
	@$(step) 'Building the extension' cargo build $(extension)
	@$(step) 'Building demo and benchmark' cargo build $(pg_test) --bins
	@$(step) 'Copying PostgreSQL to a place of its own' pg_test/bin/private-postgres
	@DESTDIR= $(step) 'Installing the extension there' pg_test/bin/install "$$(pg_test/bin/private-postgres)"

# Another private PostgreSQL, with an extension that crashes where a test wants it to.
test-hooks: prepare
	@$(step) 'Building the extension with test hooks' cargo build --release -p outbox_relay_test_hooks
	@$(step) 'Copying PostgreSQL to another place' pg_test/bin/private-postgres pg-hooks
	@DESTDIR= $(step) 'Installing the extension with test hooks there' \
		pg_test/bin/install "$$(pg_test/bin/private-postgres pg-hooks)" liboutbox_relay_test_hooks.so

demo: servers
	@$(with_state) cargo run -q $(pg_test) --bin demo

# What it compares with.
debezium: prepare
	@$(step) 'Fetching Debezium' pg_test/bin/fetch-jars connect

bench: servers debezium
	@$(with_state) cargo run -q $(pg_test) --bin bench -- short

bench-full: servers debezium
	@$(with_state) cargo run -q $(pg_test) --bin bench -- full --docs

# A flame graph of a relay at work; perf samples it, which takes root, or a kernel.perf_event_paranoid of at most 1 and PostgreSQL
# run by the same user.
PROFILE ?= docs/performance-profile.svg

profile: servers
	@$(step) 'Checking what is installed (profile)' pg_test/bin/prepare profile
	@$(with_state) cargo run -q $(pg_test) --features profile --bin bench -- profile $(PROFILE)

listen:
	@$(with_state) cargo run -q $(pg_test) --bin demo -- listen

stop:
	@$(step) 'Stopping the servers of the demo' $(with_state) cargo run -q $(pg_test) --bin demo -- stop

psql:
	@pg_test/bin/psql

# The servers first: they would go on in directories that are gone.
clean:
	@pg_test/bin/clean
