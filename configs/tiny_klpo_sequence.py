"""KLPO, sequence route: one residual for all tokens of a trajectory.

Every kernel: --config.algorithm.objective.kernel=topk

Command: python -m jaxrl_single.run.local --config=configs/tiny_klpo_sequence.py
  --workdir=runs/klpo_sequence
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "klpo_sequence",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_sum",  # mean over trajectories of the sum over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "objective": {
                "kernel": "mc",  # mc: auxiliary draws | topk: likeliest tokens | binary | full
                "beta": 0.1,  # KL of the target, in units of reward
                "tail_floor": 1e-6,  # topk: least probability outside of the stored tokens
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.sampler.num_aux_draws = 128  # M of the kernel mc; 16 in a later revision by its authors
    return common.finish(config, arg)
