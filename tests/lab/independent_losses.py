"""Coefficients of every algorithm, from the numpy formulas of `independent`.

`coefficients(name, records)` gives minus the gradient of the batch loss, action tokens only:
{"coefficients": [array per record], "aux_coefficients": [...], ...}.
"""

import numpy as np

from tests.lab import independent as ind

BETA, ETA = 0.1, 1.0


def score_function(advantages, keep, weight, reduction, extra=None):
    """Methods whose coefficient is keep x weight x A over a denominator."""

    def of(b):
        A = advantages(b)
        A = b.shared(A) if isinstance(A, np.ndarray) else A
        parts = zip(keep(b, A), weight(b, A), A, reduced(b, reduction), strict=True)
        found = [k * w * a * share for k, w, a, share in parts]
        if extra is not None:
            found = [x + y for x, y in zip(found, extra(b), strict=True)]
        return {"coefficients": found}

    return of


def reduced(b, reduction):
    tokens = b.lengths.sum()
    return {
        "token_mean": np.full(b.size, 1 / tokens),
        "sequence_mean": 1 / (b.size * b.lengths),
        "sequence_sum": np.full(b.size, 1 / b.size),
        "fixed_length": np.full(b.size, 1 / (b.size * 1024)),
    }[reduction]


def positive_nll(b):
    tokens = sum(n for n, reward in zip(b.lengths, b.R, strict=True) if reward > 0)
    return [np.full(n, 0.1 * (R > 0) / tokens) for n, R in zip(b.lengths, b.R, strict=True)]


def reference_kl(coefficient):
    """Minus the gradient of exp(ref - pi) - (ref - pi) - 1."""

    def of(b):
        gaps = ind.each(np.subtract, b.of("ref_logprobs"), b.pi)
        return [coefficient * (np.exp(gap) - 1) / b.lengths.sum() for gap in gaps]

    return of


def klpo_mc(b):
    found, aux = [], []
    for i, draws in enumerate(b.of("aux_policy_logprobs")):
        h = (b.R[i] - BETA * b.lr[i]) / b.size
        found.append(h)
        aux.append(-h[:, None] * np.full(draws.shape, 1 / draws.shape[1]))
    return {"coefficients": found, "aux_coefficients": aux}


def klpo_full(b):
    h = [(R - BETA * lr) / b.size for R, lr in zip(b.R, b.lr, strict=True)]
    q = [np.exp(x) for x in b.of("full_rollout_logprobs")]
    rows = [-x[:, None] * y for x, y in zip(h, q, strict=True)]
    return {"coefficients": h, "full_coefficients": rows}


def top(b):
    """q, p of the listed tokens, and q / p of the others."""
    q = [np.exp(x) for x in b.of("topk_rollout_logprobs")]
    p = [np.exp(x) for x in b.of("topk_policy_logprobs")]
    tails = [
        (1 - y.sum(axis=1, keepdims=True), 1 - x.sum(axis=1, keepdims=True))
        for x, y in zip(p, q, strict=True)
    ]
    return q, p, tails


def klpo_topk(b):
    h = [(R - BETA * lr) / b.size for R, lr in zip(b.R, b.lr, strict=True)]
    rows = [-x[:, None] * (q - tq / tp * p) for x, q, p, (tq, tp) in zip(h, *top(b), strict=True)]
    return {"coefficients": h, "topk_coefficients": rows}


def complement(b):
    return [(1 - np.exp(q)) / (1 - np.exp(p)) for p, q in zip(b.pi, b.mu, strict=True)]


def klpo_binary(b):
    h = [(R - BETA * lr) / b.size for R, lr in zip(b.R, b.lr, strict=True)]
    return {"coefficients": [x * w for x, w in zip(h, complement(b), strict=True)]}


def sequence_mc(b):
    found, aux = [], []
    draws = zip(b.of("aux_policy_logprobs"), b.of("aux_rollout_logprobs"), strict=True)
    for i, (p, q) in enumerate(draws):
        count = p.shape[1]
        D = b.R[i] - BETA * (b.lr[i][:, None] + q - p).sum(axis=0)
        others = (D.sum() - D) / (count - 1)
        found.append(np.full(b.lengths[i], others.mean() / b.size))
        aux.append(np.tile(-others / (count * b.size), (b.lengths[i], 1)))
    return {"coefficients": found, "aux_coefficients": aux}


def sequence_full(b):
    found, rows = [], []
    full = zip(b.of("full_policy_logprobs"), b.of("full_rollout_logprobs"), strict=True)
    for i, (p, q) in enumerate(full):
        D = b.R[i] - BETA * (b.lr[i].sum() + (np.exp(q) * (q - p)).sum())
        found.append(np.full(b.lengths[i], D / b.size))
        rows.append(-D / b.size * np.exp(q))
    return {"coefficients": found, "full_coefficients": rows}


def sequence_topk(b):
    found, rows = [], []
    for i, (q, p, (tq, tp)) in enumerate(zip(*top(b), strict=True)):
        kl = (q * np.log(q / p)).sum() + (tq * np.log(tq / tp)).sum()
        D = b.R[i] - BETA * (b.lr[i].sum() + kl)
        found.append(np.full(b.lengths[i], D / b.size))
        rows.append(-D / b.size * (q - tq / tp * p))
    return {"coefficients": found, "topk_coefficients": rows}


def sequence_binary(b):
    found = []
    for i, w in enumerate(complement(b)):
        q = np.exp(b.mu[i])
        kl = -q * b.lr[i] + (1 - q) * np.log(w)
        found.append((b.R[i] - BETA * (b.lr[i] + kl).sum()) * w / b.size)
    return {"coefficients": found}


def bellman_exact(b):
    found, rows = [], []
    full = zip(b.of("full_policy_logprobs"), b.of("full_rollout_logprobs"), strict=True)
    for i, (p, q) in enumerate(full):
        kl = (np.exp(q) * (q - p)).sum()
        delta = ETA * (b.R[i] - b.records[i]["prompt_value"]) - b.lr[i].sum() - kl
        found.append(np.full(b.lengths[i], delta / (ETA * b.size)))
        rows.append(-delta / (ETA * b.size) * np.exp(q))
    return {"coefficients": found, "full_coefficients": rows}


def regression(gap_of):
    """Minus the gradient of the mean of gap^2, gap = ell - target."""

    def of(b):
        ell = np.array([lr.sum() for lr in b.lr])
        return {"coefficients": b.shared(-2 * (ell - gap_of(b)) / b.size)}

    return of


def rebel(b):
    gap = np.array([lr.sum() for lr in b.lr]) / ETA - b.R
    slope = np.zeros(b.size)
    for i, group in enumerate(ind.groups(b)):
        others = [j for j in group if j != i]
        for j in others:  # the pair (i, j) counts in the loss of i, and (j, i) in that of j
            slope[i] += 2 * (gap[i] - gap[j]) * 2 / (len(others) * ETA * b.size)
    return {"coefficients": b.shared(-slope)}


def group_mean(b):
    return np.array([b.R[i] - b.R[g].mean() for i, g in enumerate(ind.groups(b))])


def leave_one_out(b):
    return group_mean(b) * np.array([len(g) / (len(g) - 1) for g in ind.groups(b)])


def batch_mean(b):
    return b.R - b.R.mean()


def sao_values(b):
    return ind.token_gae(b, alpha=1.5)


def ppo_values(b):
    return ind.whiten(ind.token_gae(b, lam=0.95))


_TABLE = {
    "sao": score_function(sao_values, ind.dis, ind.ratio, "token_mean"),
    "sao_step_average": score_function(
        lambda b: ind.turn_gae(b, np.mean), ind.dis, ind.ratio, "token_mean"
    ),
    "sao_step_last": score_function(
        lambda b: ind.turn_gae(b, lambda v: v[-1]), ind.dis, ind.ratio, "token_mean"
    ),
    "vapo": score_function(
        lambda b: ind.token_gae(b, alpha=0.05),
        ind.everything,
        ind.clipped(0.2, 0.28),
        "token_mean",
        positive_nll,
    ),
    "ppo": score_function(
        ppo_values, ind.everything, ind.clipped(0.2, 0.2, "proximal_logprobs"), "token_mean"
    ),
    "decoupled_ppo": score_function(ppo_values, ind.everything, ind.decoupled, "token_mean"),
    "rlef": score_function(
        lambda b: ind.turn_gae(b, lambda v: v[0]),
        ind.everything,
        ind.clipped(0.2, 0.2),
        "token_mean",
        reference_kl(0.05),
    ),
    "reinforce": score_function(batch_mean, ind.everything, ind.ratio, "token_mean"),
    "running_mean": score_function(ind.running_mean, ind.dis, ind.ratio, "token_mean"),
    "spo": score_function(ind.spo, ind.everything, ind.clipped(0.2, 0.28), "token_mean"),
    "flash_reinforce": score_function(batch_mean, ind.flash, ind.ratio, "sequence_mean"),
    "flash_token_mean": score_function(batch_mean, ind.flash, ind.ratio, "token_mean"),
    "flash_constant_length": score_function(batch_mean, ind.flash, ind.ratio, "fixed_length"),
    "flash_no_is": score_function(batch_mean, ind.flash, ind.no_ratio, "sequence_mean"),
    "flash_no_trust": score_function(batch_mean, ind.everything, ind.ratio, "sequence_mean"),
    "klpo": klpo_mc,
    "klpo objective.kernel=full": klpo_full,
    "klpo objective.kernel=topk": klpo_topk,
    "klpo objective.kernel=binary": klpo_binary,
    "klpo_sequence": sequence_mc,
    "klpo_sequence objective.kernel=full": sequence_full,
    "klpo_sequence objective.kernel=topk": sequence_topk,
    "klpo_sequence objective.kernel=binary": sequence_binary,
    "bellman_bpo": score_function(
        ind.normalised, ind.omega_mask, ind.capped_omega, "sequence_mean"
    ),
    "bellman_bpo_exact": bellman_exact,
    "rebel": rebel,
    "sppo": regression(lambda b: ETA * (b.fact("preference") - 0.5)),
    "gpo": regression(lambda b: b.fact("preference") / 1.0),
    "grpo": score_function(ind.normalised, ind.everything, ind.clipped(0.2, 0.2), "sequence_mean"),
    "grpo_clip_higher": score_function(
        ind.normalised, ind.everything, ind.clipped(0.2, 0.28), "token_mean"
    ),
    "grpo_dis": score_function(ind.normalised, ind.dis, ind.ratio, "sequence_mean"),
    "dr_grpo": score_function(group_mean, ind.everything, ind.clipped(0.2, 0.2), "fixed_length"),
    "rloo": score_function(leave_one_out, ind.everything, ind.ratio, "sequence_sum"),
    "gspo": score_function(ind.normalised, ind.everything, ind.gspo, "sequence_mean"),
    "cispo": score_function(ind.normalised, ind.everything, ind.capped(0.0, 5.0), "token_mean"),
    "sapo": score_function(ind.normalised, ind.soft_gate, ind.ratio, "sequence_mean"),
    "icepop": score_function(
        ind.normalised, ind.icepop, ind.clipped(0.2, 0.2, "proximal_logprobs"), "sequence_mean"
    ),
    "kpop": score_function(ind.normalised, ind.kpop, ind.ratio, "sequence_mean"),
    "estr": score_function(ind.normalised, ind.estr, ind.ratio, "token_mean"),
    "m2po": score_function(ind.normalised, ind.m2po, ind.ratio, "token_mean"),
    "dppo": score_function(ind.normalised, ind.dppo, ind.capped(0.0, 20.0), "token_mean"),
    "trm": score_function(ind.normalised, ind.trm, ind.ratio, "sequence_mean"),
    "branching_bpo": score_function(
        ind.branching, ind.everything, ind.clipped(0.2, 0.2), "token_mean"
    ),
    "three_spo": score_function(
        ind.three_spo, ind.everything, ind.clipped(0.2, 0.2), "token_mean", reference_kl(0.01)
    ),
    "trace": score_function(ind.trace, ind.everything, ind.clipped(0.2, 0.2), "sequence_mean"),
    "gigrpo": score_function(ind.gigrpo, ind.everything, ind.clipped(0.2, 0.2), "token_mean"),
}
NAMES = tuple(_TABLE)


def coefficients(name, records):
    return _TABLE[name](ind.Batch(records))
