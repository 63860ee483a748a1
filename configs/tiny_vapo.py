"""VAPO: PPO clip-higher with length-adaptive GAE and an NLL term on right answers.

Command: python -m jaxrl_single.run.local --config=configs/tiny_vapo.py --workdir=runs/vapo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "vapo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "num_critic_steps": 1,  # critic updates per batch
            "advantage": {
                "discount": 1.0,  # per action token
                "lambda_alpha": 0.05,  # policy lambda = 1 - 1 / (alpha x action tokens), at least 0
                "critic_lambda": 1.0,  # of the critic's target; 1 = realised return
            },
            "objective": {
                "low": 0.2,  # no step below 1 - low where the advantage is negative
                "high": 0.28,  # no step above 1 + high where it is positive
            },
            "terms": {
                "positive_nll": {
                    "coefficient": 0.1,  # of -log pi on the tokens of successful trajectories
                },
            },
        }
    )
    config.critic.rules = ((".*", "train"),)  # all of the critic
    return common.finish(config, arg)
