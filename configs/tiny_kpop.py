"""KPop: drops tokens whose Bernoulli KL between sampler and policy is too large either way.

Command: python -m jaxrl_single.run.local --config=configs/tiny_kpop.py --workdir=runs/kpop
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "kpop",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_mean",  # mean over trajectories of the mean over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "advantage": {
                "eps": 1e-6,  # added to the deviation of the group's rewards
            },
            "keep_rule": {
                "threshold": 0.1,  # nats; the authors' own, others use 0.9 and 2.0
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 8  # of one task; SAO's baselines: 16 tasks x 8
    return common.finish(config, arg)
