# `make demo` runs an example, `make test` runs all checks. Both create .venv and install what they need.
PYTHON ?= python3
BIN := .venv/bin
ON_CLUSTER := tests/distributed/test_on_cluster.py tests/distributed/test_serving_on_cluster.py

.PHONY: demo test check docs browser audit bench bench-growth bench-service clean
.DEFAULT_GOAL := test

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fecam needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.ready: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/.ready-test: .venv/.ready
	@echo "Installing the tools for the tests (torch's CPU build among them), once ..."
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

.venv/.ready-bench: .venv/.ready
	@echo "Installing encoders for the benchmarks, once ..."
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

.venv/.ready-demo: .venv/.ready
	@echo "Installing torch's CPU build and matplotlib for the demo, once ..."
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[images,glyphs,report]'
	@touch $@

# Trains a small network on 60 characters; then four classifiers learn 90 more, one by one.
demo: .venv/.ready-demo
	$(BIN)/fecam bench demo

check: .venv/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/scripts/check_docstrings.py

docs: .venv/.ready-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir .venv/site

# Tests open pages in a real browser and run the curl lines of the docs. Root installs both once;
# for other users this prints what is missing.
browser:
	@if command -v curl >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get -qq update >/dev/null 2>&1; \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y curl >/dev/null 2>&1 || \
	    echo "curl cannot be installed: the test that runs the docs' curl lines is skipped"; \
	else echo "curl is not installed: the test that runs the docs' curl lines is skipped"; fi
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing chromium to open a report in it, once ..."; \
	  apt-get -qq update >/dev/null 2>&1; \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium >/dev/null 2>&1 || \
	    echo "... chromium cannot be installed: the tests that open a report in a browser are skipped"; \
	else echo "chromium is not installed: the tests that open a report in a browser are skipped"; fi

# Checks the installed packages for known vulnerabilities on the Python Package Index, or reports that
# the index is unreachable. The tool has its own environment.
audit: .venv/.ready-test
	@$(PYTHON) -m venv .venv/audit
	@.venv/audit/bin/python -m pip install -q --disable-pip-version-check pip-audit || \
	  { echo "pip-audit cannot be installed: the audit is skipped"; exit 0; }; \
	.venv/audit/bin/python deploy/audit.py .venv/lib/python*/site-packages

# One BLAS thread per worker avoids contention. The tests on Ray share one cluster, so one process runs
# them after the others. A busy machine may start a node too late for a test: failures there are run
# once more.
test: check docs browser
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -n auto \
	  $(addprefix --ignore ,$(ON_CLUSTER))
	export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1; \
	$(BIN)/python -m pytest $(ON_CLUSTER) || $(BIN)/python -m pytest --last-failed $(ON_CLUSTER)
	@# A new vulnerability report must not block the change that fixes it.
	@$(MAKE) --no-print-directory audit || echo "^ vulnerabilities are known; 'make audit' fails until they are fixed"

# About half an hour on two cores; the last table printed is the summary. Writes
# benchmarks/results/*.json and docs/tables/*.md.
bench: .venv/.ready-bench
	$(BIN)/python benchmarks/default_quality.py
	$(BIN)/python benchmarks/encoding.py
	$(BIN)/python benchmarks/bytes_a_class.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/lessons.py
	$(BIN)/python benchmarks/first_answer.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/peak_memory.py
	$(BIN)/python benchmarks/limits.py
	$(BIN)/python benchmarks/prediction.py
	$(BIN)/python benchmarks/probabilities.py
	$(BIN)/python benchmarks/confusions.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/summary.py

# Two hours or more: 10 to 3,000 classes of every size. It continues where it stopped.
bench-growth: .venv/.ready-bench
	$(BIN)/python benchmarks/growth.py

# About fifteen minutes on two idle cores: a service under load, and killed fifty times.
bench-service: .venv/.ready-bench
	$(BIN)/python benchmarks/service_load.py
	$(BIN)/python benchmarks/service_cluster.py
	$(BIN)/python benchmarks/service_kills.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
