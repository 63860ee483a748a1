"""RLEF: PPO with one value per turn and a KL penalty towards the warm start.

Command: python -m jaxrl_single.run.local --config=configs/tiny_rlef.py --workdir=runs/rlef
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "rlef",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "num_critic_steps": 1,  # critic updates per batch
            "advantage": {
                "discount": 1.0,  # per action token
                "lambda_alpha": 1.5,  # policy lambda = 1 - 1 / (alpha x action tokens), at least 0
                "critic_lambda": 1.0,  # of the critic's target; 1 = realised return
            },
            "objective": {
                "low": 0.2,  # no step below 1 - low where the advantage is negative
                "high": 0.2,  # no step above 1 + high where it is positive
            },
            "terms": {
                "reference_kl": {
                    "coefficient": 0.05,  # of the KL to the policy of the warm start
                },
            },
        }
    )
    config.critic.rules = ((".*", "train"),)  # all of the critic
    return common.finish(config, arg)
