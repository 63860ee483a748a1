# Makes .venv in the project's root and installs the package, with an optional extra: install.sh [EXTRA]
# Sourced by the other scripts; PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra="${1:+[$1]}"
stamp=".venv/.installed${extra}"
if [ ! -x .venv/bin/python ]; then
  "${PYTHON:-python3}" -m venv .venv
fi
if [ ! -e "$stamp" ] || [ setup.py -nt "$stamp" ]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$extra"
  touch "$stamp"
fi
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$PWD/.cache/jax}"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.3
