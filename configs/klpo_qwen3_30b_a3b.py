"""KLPO, token route, with its published settings, on Qwen3-30B-A3B (arXiv 2610.08963).

The authors' launchers are for other models and synchronous; this is their setting
on the model of the SAO paper.

Command: python -m jaxrl_single.run.local --config=configs/klpo_qwen3_30b_a3b.py
  --workdir=runs/klpo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """Lines without a source say so; `tiny` as in tiny_sao."""
    config = presets.qwen3_30b_a3b()
    config.algorithm = ConfigDict(
        {
            "name": "klpo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_sum",  # mean over trajectories of the sum over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "objective": {
                "kernel": "mc",  # default; topk | binary | full
                "beta": 0.1,  # launchers; 1e-3 is the library's default
                "tail_floor": 1e-6,  # library; for topk
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.sampler.num_aux_draws = 128  # M of the kernel mc; 16 in a later revision by its authors
    config.policy_optimizer.learning_rate = 1e-6  # launchers
    config.policy_optimizer.update(
        {"weight_decay": 0.1, "warmup_steps": 15, "decay": "cosine", "decay_steps": 500}
    )  # launchers: 0.1, 3 % of the steps, and a cosine to 10 %
    config.policy_optimizer.final_fraction = 0.1
    config.rl.num_steps = 500  # not stated
    config.rl.max_staleness = 2  # not stated: their launchers are synchronous
    config.batch.num_trajectories = 128  # launchers, one per task
    config.batch.row_length = 32_768  # not stated for this model
    config.batch.row_buckets = (64, 128)  # not stated: a matter of memory
    config.env.max_turns = 16  # not stated
    config.env.max_turn_tokens = 32_768  # not stated
    config.env.max_tokens = 32_768  # as batch.row_length
    return common.finish(config, arg)
