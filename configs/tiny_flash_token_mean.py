"""FlashREINFORCE, its ablation with a mean over all tokens.

Command: python -m jaxrl_single.run.local --config=configs/tiny_flash_token_mean.py
  --workdir=runs/flash_token_mean
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "flash_token_mean",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
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
