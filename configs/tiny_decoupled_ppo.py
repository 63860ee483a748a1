"""Decoupled PPO: clips against the proximal policy, weighs by proximal / sampler.

Command: python -m jaxrl_single.run.local --config=configs/tiny_decoupled_ppo.py
  --workdir=runs/decoupled_ppo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "decoupled_ppo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "proximal",  # the ratio is to the trainer's policy before this batch
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 4,  # policy updates per pass
            "num_critic_steps": 1,  # critic updates per batch
            "advantage": {
                "discount": 1.0,  # per action token
                "lambda_": 0.95,  # of the policy's GAE
                "critic_lambda": 0.95,  # of the critic's target: the same, so it is A + V
            },
            "whitening": {
                "eps": 1e-8,  # added to the deviation over the batch
            },
            "correction": {
                "cap": 5.0,  # largest weight proximal / sampler of a token
            },
            "objective": {
                "low": 0.2,  # no step below 1 - low where the advantage is negative
                "high": 0.2,  # no step above 1 + high where it is positive
            },
        }
    )
    config.critic.rules = ((".*", "train"),)  # all of the critic
    config.batch.rows_per_micro_batch = 8  # a batch of 32 or 64 rows is dealt to 4 minibatches
    # The updates of a step go together as far as the one of other rows; the decay counts updates.
    config.policy_optimizer.learning_rate /= config.algorithm.num_minibatches
    config.policy_optimizer.decay_steps *= config.algorithm.num_minibatches
    return common.finish(config, arg)
