#!/usr/bin/env bash
# Installs into .venv, then checks style, import contracts and tests: test.sh [--slow] [PYTEST ARGUMENTS]
marker="not slow"
if [ "${1:-}" = "--slow" ]; then marker="slow"; shift; fi
arguments=("$@")
set -- test
source "$(dirname "$0")/install.sh"
export JAX_PLATFORMS=cpu
if [ "$marker" = "not slow" ]; then
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
  .venv/bin/lint-imports
fi
exec .venv/bin/python -m pytest -m "$marker" -n 2 --dist loadgroup ${arguments[@]+"${arguments[@]}"}
