# All commands of the project. `make demo` and `make test` set everything up themselves.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-spark test-compat faults soak soak-held check format generate schema reference docs bench bench-peers clean

BIN := .venv/bin
SQL := $(wildcard src/penstock/sql/migrations/*.sql)

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

.venv/ready: pyproject.toml scripts/setup
	@echo "setting up .venv (once, a minute or so)" >&2
	@scripts/setup

setup: .venv/ready  ## the virtual environment, with everything in it

demo: .venv/ready  ## from nothing: Spark loads a backlog, the scaler keeps a promise, the pipeline reports
	@$(BIN)/penstock demo

# Those with Spark in one process: each has a Java of its own. The report is looked at in a browser.
SPARK = tests/spark tests/pipeline
QUICK = "not slow and not unsampled"
unexport PYTHONDONTWRITEBYTECODE  # pytest compiles the tests anew in each of its processes unless it may write them
test: .venv/ready  ## all tests that run in minutes
	@$(BIN)/pytest -m $(QUICK) $(SPARK:%=--ignore %)
	@scripts/setup-browser >/dev/null && $(BIN)/pytest -m $(QUICK) -n 0 $(SPARK)

# Each command in an interpreter of its own; `make test` forks most of them from one that has imported Penstock.
test-all: .venv/ready check  ## every test, the long ones too, and test-compat
	@PENSTOCK_TEST_COLD=1 $(BIN)/pytest -m "slow or not slow" $(SPARK:%=--ignore %)
	@$(MAKE) --no-print-directory test-spark
	@$(MAKE) --no-print-directory test-compat

test-spark: .venv/ready  ## connector and pipeline, with real Spark; its drivers killed and frozen
	@scripts/setup-browser >/dev/null && $(BIN)/pytest -m "slow or not slow" -n 0 $(SPARK)

# In turn: PostgreSQL 15; PgBouncer in transaction mode; plans without hash and merge joins.
test-compat: .venv/ready  ## the queue on PostgreSQL 15, through PgBouncer, and with other plans
	@PENSTOCK_PG_BIN="$$(scripts/setup-compat)" && export PENSTOCK_PG_BIN && $(BIN)/pytest -m "not slow" \
	    tests/sql tests/test_queue.py tests/test_upsert.py tests/test_verbs.py tests/test_retry.py \
	    tests/test_concurrency.py tests/test_properties.py tests/test_migrate.py tests/test_upgrade.py tests/test_roles.py \
	    tests/test_schedules.py \
	    tests/faults/test_restore.py tests/worker/test_run.py tests/worker/test_leases.py
	@PENSTOCK_TEST_POOLER=1 $(BIN)/pytest tests/test_queue.py tests/test_upsert.py tests/test_verbs.py tests/test_schedules.py \
	    "tests/test_concurrency.py::test_the_lock_rule_over_hot_subjects[quick]" \
	    tests/test_migrate.py::test_init_leaves_no_lock_behind tests/worker/test_run.py
	@PENSTOCK_TEST_SETTINGS="enable_hashjoin=off enable_mergejoin=off enable_material=off" $(BIN)/pytest \
	    tests/test_queue.py tests/test_upsert.py

# A seed is printed; PENSTOCK_FAULT_SEED=… runs it again, PENSTOCK_FAULT_SCALE=0.05 a twentieth of it. Then workers that exit at
# named points, hold the interpreter past their lease, or run a task that kills them; with a scale, the quick tier of these.
# At last failovers, one at a time, after which every kind of call has to work again within the promised three seconds.
faults: .venv/ready  ## an hour of harm: 1 M tasks, kills, freezes, crashes, cuts, failovers, full disks; then a verdict
	@$(BIN)/python tests/faults/campaign.py
	@$(BIN)/pytest -n 2 -m "$(if $(PENSTOCK_FAULT_SCALE),not slow,slow or not slow)" tests/faults/test_workers.py
	@PENSTOCK_RECOVERY_BAR=3 $(BIN)/pytest -n 0 tests/faults/test_failover.py

soak: .venv/ready  ## an hour at 1,000 tasks/s under queries that hold back vacuum; writes docs/soak.md
	@$(BIN)/python bench/soak.py --write docs

soak-held: .venv/ready  ## the same under one snapshot that is held for the whole hour
	@$(BIN)/python bench/soak.py --held --write docs

check: .venv/ready  ## ruff, mypy, import rows, SQL lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/squawk --config .squawk.toml $(SQL)

format: .venv/ready  ## let ruff format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

generate: .venv/ready  ## write the sync client anew from the async one
	@$(BIN)/python scripts/make_sync.py

schema: .venv/ready  ## raise the revision if sql/ has changed, and write src/penstock/sql/schema.sql anew
	@$(BIN)/python scripts/raise_revision.py
	@$(BIN)/python scripts/dump_schema.py

reference: .venv/ready  ## docs/reference, from the code
	@$(BIN)/python scripts/make_reference.py

docs: reference  ## the site, in build/site, with its reference written anew
	@$(BIN)/mkdocs build --strict --quiet

bench: .venv/ready  ## all benchmarks: the queue, its workers, fleets of them, the scaler, metrics; results in bench/results/
	@$(BIN)/python bench/queue.py all
	@$(BIN)/python bench/worker.py all
	@$(BIN)/python bench/scale.py all
	@$(BIN)/python bench/scaler.py
	@$(BIN)/python bench/metrics.py all
	@$(BIN)/python bench/adopt.py all
	@$(BIN)/python bench/spark.py all

bench-peers: .venv/ready  ## the race: Penstock beside its peers, installed for it; writes docs/race.md
	@$(BIN)/python bench/peers.py all --write docs

clean:  ## remove what can be made again (not the embedded server's data)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
