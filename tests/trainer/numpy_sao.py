"""One SAO step for tabular models in float64 numpy, written from the equations alone.

Policy: softmax over a row of logits chosen by the token before. Critic: one value per token. Both
learn by plain gradient descent. Works on trajectories, not on packed rows.
"""

from __future__ import annotations

import numpy as np


def step(trajectories, logits, table, *, rates, low, high, alpha, num_critic_steps, critic_first):
    """(logits [token, next], table [token]) after one step, and the metrics worth comparing."""
    policy_rate, critic_rate = rates
    episodes = [_Episode(t, alpha) for t in trajectories]
    num_tokens = sum(len(e.at) for e in episodes)
    old = table.copy()
    errors = np.concatenate([e.returns - old[e.before] for e in episodes])
    returns = np.concatenate([e.returns for e in episodes])
    for _ in range(num_critic_steps):
        gradient = np.zeros_like(table)
        for e in episodes:
            np.add.at(gradient, e.before, 2 * (table[e.before] - e.returns) / num_tokens)
        table = table - critic_rate * gradient
    gradient, kept = np.zeros_like(logits), 0
    for e in episodes:
        values = (table if critic_first else old)[e.before]
        for n, advantage in enumerate(e.advantages(values)):
            scaled = logits[e.before[n]] / e.temperature
            logprobs = scaled - np.log(np.exp(scaled).sum())
            ratio = np.exp(logprobs[e.tokens[n]] - e.rollout[n])
            if not 1 - low < ratio < 1 + high:
                continue
            kept += 1
            score = (np.arange(len(scaled)) == e.tokens[n]) - np.exp(logprobs)
            gradient[e.before[n]] -= ratio * advantage * score / e.temperature / num_tokens
    metrics = {
        "keep/fraction": kept / num_tokens,
        "critic/explained_variance": 1 - errors.var() / returns.var(),
        "critic/loss": np.mean(errors**2),
        "policy/gradient_norm": np.sqrt((gradient**2).sum()),
    }
    return logits - policy_rate * gradient, table, metrics


class _Episode:
    """The action tokens of a trajectory: the observations between them do not exist."""

    def __init__(self, trajectory, alpha):
        self.at = np.flatnonzero(trajectory.action_mask)
        self.before = trajectory.tokens[self.at - 1]
        self.tokens = trajectory.tokens[self.at]
        self.rollout = trajectory.rollout_logprobs[self.at].astype(np.float64)
        self.rewards = trajectory.rewards[self.at].astype(np.float64)
        self.temperature = trajectory.temperature
        self.returns = np.cumsum(self.rewards[::-1])[::-1]
        self.lambda_ = max(0.0, 1 - 1 / (alpha * len(self.at)))

    def advantages(self, values):
        """The sum of lambda-weighted temporal differences, by its definition."""
        deltas = self.rewards + np.append(values[1:], 0.0) - values
        return [
            sum(self.lambda_**k * delta for k, delta in enumerate(deltas[n:]))
            for n in range(len(deltas))
        ]
