#!/usr/bin/env bash
# Installs into .venv, then checks style, import contracts and tests: test.sh [--slow | --long] [PYTEST ARGUMENTS]
marker="not slow and not long"
case "${1:-}" in
  --slow) marker="slow and not long"; shift ;;
  --long) marker="long"; shift ;;
esac
arguments=("$@")
set -- test
source "$(dirname "$0")/install.sh"
export JAX_PLATFORMS=cpu
unset PYTHONDONTWRITEBYTECODE  # the tests start many processes that import the same modules
if [[ "$marker" == not* ]]; then
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
  .venv/bin/lint-imports
fi
exec .venv/bin/python -m pytest -m "$marker" -n 2 --dist worksteal ${arguments[@]+"${arguments[@]}"}
