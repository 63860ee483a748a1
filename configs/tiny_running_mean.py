"""SAO without its critic: the baseline is the mean of the task's last rewards.

Command: python -m jaxrl_single.run.local --config=configs/tiny_running_mean.py
  --workdir=runs/running_mean
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "running_mean",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "advantage": {
                "window": 8,  # last rewards of the task that make its baseline
                "initial": 0.5,  # baseline of a task that was never seen
            },
            "keep_rule": {
                "low": 0.3,  # ratios are kept in the open interval (1 - low, 1 + high)
                "high": 5.0,  # published for mathematics, as 0.3; for coding 0.8 and 3.0
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.env.num_train_tasks = 512  # so that a task comes again, after about 8 steps
    return common.finish(config, arg)
