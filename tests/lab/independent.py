"""Advantages, keep rules and weights in plain numpy, trajectory by trajectory, from the papers.

Nothing here comes from the package. Arrays hold action tokens only.
"""

import numpy as np


class Batch:
    """Action tokens only, without the copies of a parent's, one array per trajectory."""

    def __init__(self, records):
        self.records = records
        self.sampled = [np.array(r["action_mask"], bool) for r in records]
        forks = [r["fork_index"] if "parent_id" in r else 0 for r in records]
        self.masks = [
            m & (np.arange(len(m)) >= f) for m, f in zip(self.sampled, forks, strict=True)
        ]
        self.size = len(records)
        self.lengths = np.array([m.sum() for m in self.masks])
        self.pi, self.mu = self.of("policy_logprobs"), self.of("rollout_logprobs")
        self.lr = [p - q for p, q in zip(self.pi, self.mu, strict=True)]
        self.rewards = [self.fold(r, m) for r, m in zip(records, self.masks, strict=True)]
        self.R = np.array([r.sum() for r in self.rewards])

    def of(self, name):
        return [
            np.array([x for x, m in zip(r[name], mask, strict=True) if m], float)
            for r, mask in zip(self.records, self.masks, strict=True)
        ]

    def fact(self, name):
        return np.array([r[name] for r in self.records])

    def fold(self, record, mask):
        found = np.zeros(len(mask))
        if "rewards" in record:
            for at, reward in enumerate(record["rewards"]):
                found[np.flatnonzero(mask[: at + 1])[-1] if reward else at] += reward or 0.0
        else:
            found[np.flatnonzero(mask)[-1]] = record["reward"]
        return found[mask]

    def turns(self, i):
        """Number of the turn of each action token: runs of the mask."""
        starts = np.diff(self.sampled[i].astype(int), prepend=0) == 1
        return (np.cumsum(starts) - 1)[self.masks[i]]

    def shared(self, per_trajectory):
        return [np.full(n, a) for n, a in zip(self.lengths, per_trajectory, strict=True)]


# Advantages: one array per trajectory.


def gae(rewards, values, bootstrap, lam):
    advantages, after, next_value = np.zeros(len(values)), 0.0, bootstrap
    for t in reversed(range(len(values))):
        after = rewards[t] + next_value - values[t] + lam * after
        advantages[t], next_value = after, values[t]
    return advantages


def bootstrap(record):
    return 0.0 if record.get("terminated", True) else record["bootstrap_value"]


def adaptive(b, i, alpha):
    return max(0.0, 1.0 - 1.0 / (alpha * b.lengths[i]))


def token_gae(b, alpha=None, lam=None):
    values = b.of("values")
    return [
        gae(b.rewards[i], values[i], bootstrap(b.records[i]), lam or adaptive(b, i, alpha))
        for i in range(b.size)
    ]


def turn_gae(b, value_of):
    values, found = b.of("values"), []
    for i in range(b.size):
        turns = b.turns(i)
        numbers, inverse = np.unique(turns, return_inverse=True)
        v = np.array([value_of(values[i][turns == k]) for k in numbers])
        r = np.array([b.rewards[i][turns == k].sum() for k in numbers])
        found.append(gae(r, v, bootstrap(b.records[i]), adaptive(b, i, 1.5))[inverse])
    return found


def whiten(arrays):
    flat = np.concatenate([np.atleast_1d(a) for a in arrays])
    return [(a - flat.mean()) / (flat.std(ddof=1) + 1e-8) for a in arrays]


def groups(b):
    ids = b.fact("group_id")
    return [np.flatnonzero(ids == g) for g in ids]


def normalised(b):
    of = groups(b)
    return np.array([(b.R[i] - b.R[g].mean()) / (b.R[g].std() + 1e-6) for i, g in enumerate(of)])


def running_mean(b):
    seen, found = {}, []
    for task, reward in zip(b.fact("task_id"), b.R, strict=True):
        window = seen.setdefault(task, [])
        found.append(reward - (np.mean(window[-8:]) if window else 0.5))
        window.append(reward)
    return np.array(found)


def spo(b):
    state, found = {}, []
    for i, task in enumerate(b.fact("task_id")):
        alpha, beta, drift = state.get(task, (0.5, 0.5, 0.0))
        found.append(b.R[i] - alpha / (alpha + beta))
        rho = np.clip(2.0 ** (-drift / 0.06), 0.875, 0.96)
        state[task] = (rho * alpha + b.R[i], rho * beta + 1 - b.R[i], np.abs(b.lr[i]).mean())
    return np.array(whiten(found))


def branching(b):
    """One child, of trajectory 0: its own tokens and its parent's after the fork are compared."""
    (child,) = [i for i, r in enumerate(b.records) if "parent_id" in r]
    (parent,) = [i for i, r in enumerate(b.records) if r["id"] == b.records[child]["parent_id"]]
    backbones = [i for i in range(b.size) if i != child]
    found = b.shared(b.R - b.R[backbones].mean())
    for one, other in ((child, parent), (parent, child)):
        own = np.flatnonzero(b.masks[one]) >= b.records[child]["fork_index"]
        found[one] = np.where(own, b.R[one] - b.R[other], found[one] * (one != child))
    return found


def steps(b):
    """(trajectory, turn, state) of all turns with a token of its own."""
    return [
        (i, k, str(key))
        for i, r in enumerate(b.records)
        for k, key in enumerate(r["state_key"])
        if k in b.turns(i)
    ]


def by_turn(b, of_step):
    return [np.array([of_step[i, k] for k in b.turns(i)]) for i in range(b.size)]


def three_spo(b):
    """The first batch: no state was seen before, so S = 1 and N = 0 everywhere."""
    reward, after = {}, {(i, k): s for i, k, s in steps(b)}
    for i, k, state in steps(b):
        next_state = after.get((i, k + 1))
        moved = next_state is not None and next_state != state
        success = next_state is None and b.R[i] > 0
        reward[i, k] = 0.5 * moved + 0.5 * success
    mean = {s: np.mean([reward[j, k] for j, k, t in steps(b) if t == s]) for _, _, s in steps(b)}
    return by_turn(b, {(i, k): reward[i, k] - mean[s] for i, k, s in steps(b)})


def gigrpo(b):
    to_come = {}
    for i, k, _ in reversed(steps(b)):
        here = b.rewards[i][b.turns(i) == k].sum()
        to_come[i, k] = here + 0.95 * to_come.get((i, k + 1), 0.0)
    ids, found = b.fact("group_id"), {}
    for i, k, state in steps(b):
        same = [to_come[j, m] for j, m, s in steps(b) if s == state and ids[j] == ids[i]]
        found[i, k] = (to_come[i, k] - np.mean(same)) / (np.std(same) + 1e-6)
        if max(same) == min(same):
            found[i, k] = 0.0
    outcome = normalised(b)
    return [outcome[i] + a for i, a in enumerate(by_turn(b, found))]


def trace(b):
    outcome, found = normalised(b), []
    for i, record in enumerate(b.records):
        d = 0.1 - np.array(record["gold_logprobs"])
        delta = np.diff(np.log(d[0] / d))
        credit = np.zeros(len(delta) + 1)
        for t in range(len(delta)):
            weights = 0.8 ** np.arange(min(3, len(delta) - t))
            credit[t] = (weights * delta[t : t + 3]).sum() / weights.sum()
            if t + 3 >= len(delta):
                credit[t] += 2.0 * 0.8 ** (len(delta) - t) * outcome[i]
        found.append(outcome[i] + 0.2 * credit[np.minimum(b.turns(i), len(delta))])
    return found


# Keep rules and weights: one array per trajectory. They take the batch and the advantages.


def kl2(a, b, eps):
    a, b = (np.clip(np.exp(x), eps, 1 - eps) for x in (a, b))
    return a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b))


def each(function, *arrays):
    return [np.asarray(function(*a), float) for a in zip(*arrays, strict=True)]


def everything(b, A):
    return each(np.ones_like, b.lr)


def dis(b, A):
    return each(lambda lr: (np.exp(lr) > 0.7) & (np.exp(lr) < 6.0), b.lr)


def flash(b, A):
    return each(lambda p, q: np.full(len(p), kl2(q, p, 1e-6).mean() <= 3e-3), b.pi, b.mu)


def icepop(b, A):
    k = each(lambda p, q: np.exp(p - q), b.of("proximal_logprobs"), b.mu)
    return each(lambda k: k * ((k >= 0.5) & (k <= 5.0)), k)


def kpop(b, A):
    return each(lambda p, q: np.maximum(kl2(p, q, 1e-8), kl2(q, p, 1e-8)) <= 0.1, b.pi, b.mu)


def estr(b, A):
    statistic = each(lambda lr, h: lr**2 / (h + 0.01), b.lr, b.of("entropies"))
    tau = np.quantile(np.concatenate(statistic), 1 - 7e-4)
    return each(lambda s: s <= tau, statistic)


def m2po(b, A):
    lr, a = np.concatenate(b.lr), np.concatenate(A)
    v = np.sort(lr[lr * a > 0] ** 2)
    low, high = 0.0, np.inf
    if v.mean() > 0.04:
        clipped_sums = [v[k] * (len(v) - 1 - k) + v[: k + 1].sum() for k in range(len(v))]
        k = next(k for k, total in enumerate(clipped_sums) if total >= 0.04 * len(v))
        tau = np.sqrt(v[k - 1]) if k else 0.0
        low, high = min(np.exp(-tau), 0.7), max(np.exp(tau), 1.5)
    return each(
        lambda lr, a: ~(((a > 0) & (np.exp(lr) > high)) | ((a < 0) & (np.exp(lr) < low))), b.lr, A
    )


def dppo(b, A):
    def keep(p, q, a):
        far = np.abs(np.exp(p) - np.exp(q)) > 0.15
        return ~(far & np.where(a > 0, p > q, p < q))

    return each(keep, b.pi, b.mu, A)


def trm(b, A):
    full = zip(b.of("full_policy_logprobs"), b.of("full_rollout_logprobs"), strict=True)
    kls = [(np.exp(q) * (q - p)).sum(axis=1) for p, q in full]
    return each(lambda kl: np.full(len(kl), kl.max() <= 0.05), kls)


def omega(b):
    return each(lambda p, q: (1.1 - np.exp(q)) / (1.1 - np.exp(p)), b.pi, b.mu)


def omega_mask(b, A):
    return each(lambda w, a: ~(((a < 0) & (w < 0.8)) | ((a > 0) & (w > 1.28))), omega(b), A)


def soft_gate(b, A):
    def gate(lr, a):
        s = 1 / (1 + np.exp(-np.where(a > 0, 1.0, 1.05) * (np.exp(lr) - 1)))
        return 4 * s * (1 - s)

    return each(gate, b.lr, A)


def ratio(b, A):
    return each(np.exp, b.lr)


def no_ratio(b, A):
    return everything(b, A)


def clipped(low, high, over=None):
    """PPO: the ratio where the minimum of its two terms is the unclipped one."""

    def weight(b, A):
        r = each(lambda p, q: np.exp(p - q), b.pi, b.of(over) if over else b.mu)
        return each(lambda r, a: r * (r * a <= np.clip(r, 1 - low, 1 + high) * a), r, A)

    return weight


def gspo(b, A):
    s = [np.full(len(lr), np.exp(lr.mean())) for lr in b.lr]
    return each(lambda s, a: s * (s * a <= np.clip(s, 1 - 3e-4, 1 + 4e-4) * a), s, A)


def capped(low, high):
    return lambda b, A: each(lambda lr: np.clip(np.exp(lr), low, high), b.lr)


def decoupled(b, A):
    behaviour = each(lambda p, q: np.minimum(np.exp(p - q), 5.0), b.of("proximal_logprobs"), b.mu)
    return each(np.multiply, behaviour, clipped(0.2, 0.2, "proximal_logprobs")(b, A))


def capped_omega(b, A):
    return each(lambda w: np.minimum(w, 3.0), omega(b))
