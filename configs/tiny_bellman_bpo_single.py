"""Bellman BPO with single rollouts: the baseline is the mean of the task's last rewards.

Not published: the paper compares 16 trajectories of a task. What its deviation of the group would
mean here has no answer, so advantages are not divided by anything.

Command: python -m jaxrl_single.run.local --config=configs/tiny_bellman_bpo_single.py
  --workdir=runs/bellman_bpo_single
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "bellman_bpo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_mean",  # mean over trajectories of the mean over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 8,  # policy updates per pass
            "advantage": {
                "name": "running_mean",  # instead of a comparison within the group
                "window": 8,  # last rewards of the task that make its baseline
                "initial": 0.5,  # baseline of a task that was never seen
            },
            "keep_rule": {
                "eps": 0.1,  # omega = (1 + eps - rollout) / (1 + eps - policy), of probabilities
                "low": 0.2,  # dropped: omega below 1 - low where the advantage is negative
                "high": 0.28,  # and above 1 + high where it is positive
            },
            "objective": {
                "eps": 0.1,  # of the weight omega, as in the keep rule
                "cap": 3.0,  # largest omega that is used
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.env.num_train_tasks = 512  # so that a task comes again, after about 8 steps
    config.batch.rows_per_micro_batch = 4  # a batch of 32 or 64 rows is dealt to 8 minibatches
    # The updates of a step go together as far as the one of other rows; the decay counts updates.
    config.policy_optimizer.learning_rate /= config.algorithm.num_minibatches
    config.policy_optimizer.decay_steps *= config.algorithm.num_minibatches
    return common.finish(config, arg)
