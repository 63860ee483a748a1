"""SAO with turns as steps: a turn's value is that of its last token.

Command: python -m jaxrl_single.run.local --config=configs/tiny_sao_step_last.py
  --workdir=runs/sao_step_last
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "sao_step_last",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "num_critic_steps": 2,  # critic updates per batch (SAO: K = 2)
            "advantage": {
                "discount": 1.0,  # per action token
                "lambda_alpha": 1.5,  # policy lambda = 1 - 1 / (alpha x action tokens), at least 0
                "critic_lambda": 1.0,  # of the critic's target; 1 = realised return
            },
            "keep_rule": {
                "low": 0.3,  # ratios are kept in the open interval (1 - low, 1 + high)
                "high": 5.0,  # published for mathematics, as 0.3; for coding 0.8 and 3.0
            },
        }
    )
    return common.finish(config, arg)
