"""Every metric, with one line of meaning. A name that is not here cannot be written.

Unless a line says otherwise: over the trajectories trained at this step, means over their sampled
tokens, natural logarithms (nats), and null where there was nothing to measure. Pairs of sum and
weight are added over micro-batches and devices and divided once.
"""

from __future__ import annotations

import difflib
import re

from jaxrl_single import types

NAMES: dict[str, str] = {
    # What the agent did.
    "episode/reward": "mean of the episodes' rewards",
    "episode/success": "fraction of episodes that the environment calls a success",
    "episode/turns": "mean number of actions of an episode",
    "episode/length": "mean number of sampled tokens of an episode",
    "episode/length_success": "the same, of the successful ones",
    "episode/length_failure": "the same, of the failed ones",
    "episode/truncated": "fraction of episodes ended by a limit of turns, tokens or context",
    "episode/segments": "mean number of contexts of an episode; 1 if its past is never rewritten",
    # Episodes without a reward: counted since the step before, whether or not trained later.
    "errors/total": "episodes that failed since the last line, those of evaluations too",
    "errors/env": "of them, in the environment",
    "errors/tool": "of them, in a tool",
    "errors/reward": "of them, in the reward function",
    "errors/sampler": "of them, in the sampler",
    "errors/limit": "of them, for a limit that nothing could satisfy",
    "errors/rejected_files": "trajectory and ticket files not used: foreign, torn or invalid",
    # Asynchrony, at the moment of consumption.
    "staleness/mean": "trainer version minus version that sampled the token",
    "staleness/max": "the largest of any token",
    "staleness/spans_versions": "fraction of trajectories sampled by more than one version",
    "staleness/within_episode": "mean of newest minus oldest version within a trajectory",
    "staleness/dropped": "trajectories dropped since the last line, older than max_staleness",
    "staleness/dropped_fraction": "dropped / (dropped + trained) since the last line",
    "staleness/length_trained": "mean sampled tokens of the trained trajectories",
    "staleness/length_dropped": "mean sampled tokens of the dropped; dropping biases to the short",
    "staleness/lengths_trained": "histogram of sampled tokens of the trained trajectories",
    "staleness/lengths_dropped": "histogram of sampled tokens of the dropped trajectories",
    "staleness/queued": "finished trajectories that wait to be trained",
    "staleness/in_flight": "tickets issued and not finished",
    # The policy and its distance from the weights that sampled.
    "policy/loss": "the objective, reduced as the algorithm says",
    "policy/gradient_norm": "global norm before clipping",
    "policy/learning_rate": "of this update",
    "policy/entropy": "full-vocabulary entropy of the trainer's policy",
    "policy/sampler_entropy": "the same as the sampler recorded it",
    "policy/advantage_mean": "mean advantage",
    "policy/advantage_abs": "mean absolute advantage",
    "policy/ratio_mean": "mean of policy probability / rollout probability",
    "policy/weight_mean": "mean of ratio times keep, the size of the step on a token",
    "policy/clip_fraction": "fraction of tokens whose ratio was clipped",
    "policy/log_ratio_mean": "mean log ratio",
    "policy/log_ratio_abs": "mean absolute log ratio",
    "policy/log_ratio_q00": "smallest log ratio",
    "policy/log_ratio_q01": "1 % quantile of the log ratio",
    "policy/log_ratio_q05": "5 % quantile of the log ratio",
    "policy/log_ratio_q25": "25 % quantile of the log ratio",
    "policy/log_ratio_q50": "median log ratio",
    "policy/log_ratio_q75": "75 % quantile of the log ratio",
    "policy/log_ratio_q95": "95 % quantile of the log ratio",
    "policy/log_ratio_q99": "99 % quantile of the log ratio",
    "policy/log_ratio_q100": "largest log ratio",
    "policy/k1": "KL(rollout || policy) by -log ratio: unbiased, may be negative",
    "policy/k3": "KL(rollout || policy) by ratio - 1 - log ratio: never negative",
    "policy/chi2": "mean squared ratio minus 1",
    # Of the algorithms that have them.
    "policy/positive_nll": "negative log-likelihood of the tokens of rewarded trajectories",
    "policy/reference_kl": "KL(policy || reference policy), estimated without bias",
    "policy/entropy_bonus": "minus the policy's entropy, as it enters the loss",
    "policy/omega_mean": "mean of (1 - rollout probability) / (1 - policy probability)",
    "policy/return_coefficient": "mean of reward - beta x log ratio, KLPO's coefficient",
    "policy/return_coefficient_abs": "the same, absolute",
    "policy/kernel_kl": "KL(rollout || policy) per token, by KLPO's kernel",
    "policy/tail_mass": "rollout probability outside the recorded top K",
    "policy/floored_tokens": "fraction of tokens whose tail was floored",
    "policy/saturated_tokens": "fraction of tokens whose log-probs were clamped below 0",
    "policy/residual": "mean over trajectories of a regression's residual",
    "policy/residual_abs": "the same, absolute",
    "policy/sequence_kl": "KL(rollout || policy) per trajectory, summed over its tokens",
    "policy/predicted_kl": "KL per token by which the whole update would have moved the policy",
    "policy/step_scale": "factor on the update that keeps it within rl.kl_budget",
    "policy/regression_loss": "mean over trajectories of the squared residual, as the loss has it",
    # The keep rule.
    "keep/fraction": "fraction of tokens kept",
    "keep/fraction_positive": "of the tokens with a positive advantage",
    "keep/fraction_negative": "of the tokens with a negative advantage",
    "keep/masked_low": "fraction of tokens masked because the ratio is too low",
    "keep/masked_high": "fraction of tokens masked because the ratio is too high",
    "keep/entropy_kept": "mean entropy of the kept tokens",
    "keep/entropy_masked": "mean entropy of the masked tokens",
    # The critic.
    "critic/loss": "mean squared error to the returns, before the first update on the batch",
    "critic/loss_last": "the same before the last of the updates on the batch",
    "critic/gradient_norm": "global norm before clipping, of the first update",
    "critic/learning_rate": "of this update",
    "critic/explained_variance": "1 - Var(G - V) / Var(G) of the values before the update",
    "critic/value_mean": "mean value before the update",
    "critic/return_mean": "mean return",
    # Sampler against trainer, same weights, same tokens.
    "mismatch/kl": "mean of the k3 estimate between sampler and trainer at equal weights",
    "mismatch/mean": "mean absolute difference of log-probs at equal weights",
    "mismatch/max": "largest absolute difference of log-probs at equal weights",
    "mismatch/tokens": "tokens compared",
    # Router replay: what the routers being trained think of the sampler's choice of experts.
    "routing/changed": "fraction of (token, layer) pairs whose router would take other experts",
    "routing/changed_tokens": "fraction of tokens for which that is so in at least one layer",
    # Where the time goes, seconds of this step.
    "time/step_s": "from the end of the step before to the end of this one",
    "time/wait_s": "waiting for trajectories",
    "time/train_s": "in the train step, until its metrics are there",
    "time/publish_s": "publishing weights",
    "time/checkpoint_s": "saving a checkpoint after the step before, 0 when there was none",
    "speed/trainer_tokens_per_s": "tokens of the batch / step_s, observations included",
    "speed/sampler_tokens_per_s": "sampled tokens / s of the sampler since the last line",
    # The batch and the machinery.
    "train/trajectories": "trajectories in the batch",
    "train/tokens": "tokens in the batch, observations included",
    "train/action_tokens": "tokens that enter the loss",
    "train/rows": "packed rows, padding rows included",
    "train/padding": "fraction of positions that are padding",
    "train/policy_version": "version that this step published",
    "train/critic_only": "1 when the policy was left alone at this step",
    "train/empty_update": "1 when nothing was left to train, and nothing was changed",
    "train/nonfinite": "1 when loss or gradient was not finite, and nothing was changed",
    "train/compilations": "XLA compilations of the trainer since its start; flat after warm-up",
    "sampler/compilations": "XLA compilations of the sampler since its start",
    "sampler/swaps": "weight swaps of the sampler since its start",
    "sampler/swap_s": "mean seconds of a weight swap, from its arrival to its effect",
    "sampler/stall_s": "mean seconds that decoding stood still for a weight swap",
    "sampler/active_slots": "slots that decode",
    "sampler/restarts": "restarts of the sampler since the start of the run",
    # Warm start, value pretraining, evaluation: stages of their own with their own steps.
    "warm_start/loss": "negative log-likelihood of the script's tokens",
    "warm_start/gradient_norm": "global norm before clipping",
    "warm_start/learning_rate": "of this update",
    "value_pretraining/loss": "mean squared error to the returns",
    "value_pretraining/gradient_norm": "global norm before clipping",
    "value_pretraining/explained_variance": "on rollouts held out from this stage",
    "eval/success": "fraction of held-out tasks that succeed",
    "eval/ci_low": "lower end of its 95 % interval",
    "eval/ci_high": "upper end of its 95 % interval",
    "eval/n": "held-out tasks with a verdict",
    "eval/errors": "held-out tasks whose episode failed; no part of success",
    "eval/reward": "mean reward on held-out tasks",
    "eval/turns": "mean number of actions on held-out tasks",
    "eval/length": "mean sampled tokens on held-out tasks",
    "eval/truncated": "fraction of held-out tasks ended by a limit",
}

# Of one's own environment: env/NAME, env/NAME_success, env/NAME_failure; the mean of a number of
# StepResult.info over the episodes, over those that succeed, and over those that fail.
_FACT = re.compile(f"env/{types.FACT_NAME.pattern}(_success|_failure)?")

HISTOGRAMS = frozenset({"staleness/lengths_trained", "staleness/lengths_dropped"})


class UnknownMetric(ValueError):
    """A metric that NAMES does not list."""


def is_known(name: str) -> bool:
    """Whether a metric may have this name."""
    return name in NAMES or _FACT.fullmatch(name) is not None


def check(name: str) -> None:
    """Raises UnknownMetric unless the name is listed; the message offers the nearest one."""
    if is_known(name):
        return
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UnknownMetric(
        f"metric {name!r} is not listed; {hint}Add it with its meaning to "
        "jaxrl_single/metrics/names.py"
    )
