"""ESTR: the band of allowed ratios widens with the entropy of the sampler.

Command: python -m jaxrl_single.run.local --config=configs/tiny_estr.py --workdir=runs/estr
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "estr",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "advantage": {
                "eps": 1e-6,  # added to the deviation of the group's rewards
            },
            "keep_rule": {
                "tau": 0.0,  # kept: log-ratio^2 <= tau x (entropy + offset); 0: see below
                "masked_fraction": 7e-4,  # with tau = 0: tau drops so much of the first batch
                "offset": 0.01,  # nats; widens the band where the entropy is 0
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 8  # of one task; SAO's baselines: 16 tasks x 8
    return common.finish(config, arg)
