#!/usr/bin/env bash
# Installs into .venv and runs the main job: quickstart.sh [WORKDIR] [--config.FIELD=VALUE ...]
workdir="runs/tiny_sao"
if [ $# -gt 0 ] && [[ "$1" != --* ]]; then workdir="$1"; shift; fi
overrides=("$@")
set --
source "$(dirname "$0")/install.sh"
exec .venv/bin/python -m jaxrl_single.run.local \
  --config=configs/tiny_sao.py --workdir="$workdir" ${overrides[@]+"${overrides[@]}"}
