# Every target does its own set-up from nothing: `make run` on a bare Debian or Ubuntu machine, as root, is enough.
SHELL := /bin/bash
.DEFAULT_GOAL := help
ARGS ?=
BIN := .venv/bin

.PHONY: help run demo bench test races oracle paired everything mutation lint setup clean distclean test-vm test-vagrant peers image pictures deb dist

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo '  Options of a command go into ARGS, as in: make demo ARGS="--runs 20 --margin 2Mi"'

run: setup ## Start the monitor in observe mode (ARGS="--enforce ...")
	@$(BIN)/outrace run $(ARGS)

demo: setup ## Race eviction against the OOM killer in a small node made out of a cgroup
	@$(BIN)/outrace demo $(ARGS)

bench: setup ## Measure races, latency and overhead on this machine
	@$(BIN)/outrace bench race $(ARGS)
	@$(BIN)/outrace bench latency $(ARGS)
	@$(BIN)/outrace bench overhead $(ARGS)

test: setup ## Run the tests that one run decides, in parallel; the others are races
	@scripts/test-tools.sh
	@$(BIN)/python -m pytest -n logical --dist loadfile --no-loadscope-reorder -m "not races" $(ARGS)

races: setup ## Repeat what is a race or a latency: more losses than there were? (ARGS="--only hold")
	@$(BIN)/python scripts/races.py $(ARGS)

oracle: setup ## Compare answers of this tree with those kept in tests/data/oracle (ARGS="--only 'options/*'")
	@$(BIN)/python scripts/oracle compare $(ARGS)

paired: setup ## Old and new tree in turns: latency, races, overhead, footprint, kills, size (OLD=COMMIT ARGS="--only race")
	@$(BIN)/python scripts/paired.py $(OLD) $(ARGS)

everything: setup ## All of it, for a release: the oracle, tests, races, three kernels in guests
	@$(BIN)/python scripts/stages.py --everything

mutation: setup ## Break the code one change at a time: do the tests notice? (ARGS="hold --budget 40")
	@$(BIN)/python scripts/mutate.py $(ARGS)

lint: setup ## Check format, style, types, imports, and that documents name what is there
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/python scripts/checks

setup: ## Install what is missing: python3-bpfcc, libbpf (apt), .venv
	@scripts/setup.sh

test-vm: setup ## Run the kernel tests in a virtual machine on Linux 6.1, 6.12 or 7.2 (ARGS=--all, ARGS="--kernel 6.1 -- -k oom")
	@$(BIN)/python scripts/vm/matrix.py $(ARGS)

test-vagrant: setup ## Run the kernel tests in a Vagrant machine, made here and destroyed afterwards
	@$(BIN)/python scripts/vm/vagrant.py $(ARGS)

peers: setup ## Compare with earlyoom, nohang and systemd-oomd in a Vagrant machine (ARGS="--runs 1"; some hours)
	@$(BIN)/python scripts/vm/vagrant.py --kernel 6.12 --deadline 18000 --command "python3 -m monitor.cli.main bench peers $(ARGS)"

image: setup ## Build the container image (BASE=mmdebstrap where no registry of images is reached)
	@scripts/image.sh

pictures: setup ## Make pictures, schema and table of the documents; screenshots where chromium is installed
	@$(BIN)/python scripts/picture.py
	@$(BIN)/python -m scripts.drawings
	@$(BIN)/python scripts/reference.py
	@$(BIN)/python scripts/screenshots.py

deb: setup ## Build a Debian package in dist/ (Debian 12 and later, Ubuntu 24.04 and later)
	@$(BIN)/python scripts/deb.py $(ARGS)

dist: deb ## Build wheel and source distribution there as well
	@$(BIN)/python -m build --outdir dist >/dev/null
	@ls -l dist

clean: ## Remove .venv and everything built but the guests' images
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -not -path './.vm/*' -prune -exec rm -rf {} +

distclean: clean ## The same, and remove the guests' images and results (.vm): building them takes some minutes
	rm -rf .vm
