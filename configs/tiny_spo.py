"""SPO: a success probability per task, tracked as a Beta distribution, is the baseline.

As published the trackers also choose the tasks: those of uncertain success come most often. Unlike
there, they begin without offline rollouts.

Command: python -m jaxrl_single.run.local --config=configs/tiny_spo.py --workdir=runs/spo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "spo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "advantage": {
                "half_life": 0.06,  # mean |log-ratio| of a task's last visit that halves its memory
                "prior": 0.5,  # alpha and beta of a task that was never seen
                "rho_min": 0.875,  # smallest share of the memory that a visit leaves
                "floor": 0.05,  # added to sqrt(v (1 - v)), the weight with which a task is sampled
                "rho_max": 0.96,  # largest share, when the policy has not moved
            },
            "whitening": {
                "eps": 1e-8,  # added to the deviation over the batch
            },
            "objective": {
                "low": 0.2,  # no step below 1 - low where the advantage is negative
                "high": 0.28,  # no step above 1 + high where it is positive
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.env.num_train_tasks = 512  # so that a task comes again, after about 8 steps
    return common.finish(config, arg)
