"""FlashREINFORCE: batch-mean baseline, plain ratio, and trajectories that drifted left out.

Command: python -m jaxrl_single.run.local --config=configs/tiny_flash_reinforce.py
  --workdir=runs/flash_reinforce
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "flash_reinforce",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_mean",  # mean over trajectories of the mean over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "keep_rule": {
                "delta": 3e-3,  # nats; largest mean Bernoulli KL of a trajectory that is kept
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    return common.finish(config, arg)
