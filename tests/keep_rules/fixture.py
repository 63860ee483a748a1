"""One batch for all rules: a published table of five tokens, and every rule by name.

The rules' constants below are those of the table, and bounds that split the random batch of
`test_all_rules.py`.
"""

import functools

import numpy as np

from jaxrl_single.keep_rules import (
    dppo,
    estr,
    flash,
    icepop,
    kpop,
    m2po,
    omega_mask,
    one_sided,
    sequences,
    soft_gate,
    trm,
)

ROLLOUT = np.array([0.60, 0.02, 0.90, 0.30, 0.005])
POLICY = np.array([0.50, 0.12, 0.97, 0.29, 0.0005])
ENTROPIES = np.array([0.9, 2.5, 0.2, 1.2, 3.0])
LOG_RATIO = np.log(POLICY) - np.log(ROLLOUT)
MASK = np.ones(5, bool)
INDEX = np.zeros(5, np.int32)  # all of trajectory 0


def bits(keep) -> str:
    """As a string of 0 and 1."""
    assert set(np.unique(keep)) <= {0.0, 1.0}
    return "".join(str(int(k)) for k in np.asarray(keep))


def estr_first_batch(log_ratio, entropies, action_mask, *, masked_fraction, offset):
    """`estr` while it calibrates itself, without its state."""
    state = estr.estr_init(1, tau=0.0)
    constants = {"masked_fraction": masked_fraction, "offset": offset}
    return estr.estr(state, log_ratio, entropies, action_mask, **constants)[0]


def estr_fixed(log_ratio, entropies, action_mask, *, tau, offset):
    """`estr` with a given tau, without its state."""
    state, constants = estr.estr_init(1, tau=tau), {"masked_fraction": 0.5, "offset": offset}
    return estr.estr(state, log_ratio, entropies, action_mask, **constants)[0]


SIDES = {"low": 0.2, "high": 0.28}

# Name to the rule with its constants. The first decide token by token, the others look at whole
# trajectories, the last at the whole batch.
TOKEN_RULES = {
    "icepop": functools.partial(icepop.icepop, low=0.5, high=5.0),
    "kpop": functools.partial(kpop.kpop, threshold=0.1),
    "estr": functools.partial(estr_fixed, tau=0.5, offset=0.01),
    "dppo_tv": functools.partial(dppo.dppo_tv, low=0.05, high=0.05),
    "dppo_kl": functools.partial(dppo.dppo_kl, low=0.01, high=0.01),
    "dppo_topk_tv": functools.partial(dppo.dppo_topk_tv, low=0.15, high=0.15),
    "dppo_topk_kl": functools.partial(dppo.dppo_topk_kl, low=0.05, high=0.05),
    "ppo_clip": functools.partial(one_sided.ppo_clip, **SIDES),
    "omega_mask": functools.partial(omega_mask.omega_mask, eps=0.1, **SIDES),
    "soft_gate": functools.partial(soft_gate.soft_gate, tau_positive=1.0, tau_negative=1.05),
}
TRAJECTORY_RULES = {
    "trm": functools.partial(trm.trm, max_kl=0.23, mean_kl=0.05),
    "trm_k2_max": functools.partial(trm.trm_k2_max, limit=0.6),
    "trm_k3_max": functools.partial(trm.trm_k3_max, limit=1.0),
    "trm_k3_mean": functools.partial(trm.trm_k3_mean, limit=0.3),
    "sequence_mis": functools.partial(sequences.sequence_mis, cap=2.0),
    "geometric_band": functools.partial(sequences.geometric_band, cap=1.2),
    "veto": functools.partial(sequences.veto, floor=0.45),
    "flash_trust_region": functools.partial(flash.flash_trust_region, delta=0.1),
    "entropy_filter": functools.partial(flash.entropy_filter, fraction=0.5),
    "flash_filtered": functools.partial(flash.flash_filtered, delta=0.1, fraction=0.5),
}
BATCH_RULES = {
    "estr calibrating": functools.partial(estr_first_batch, masked_fraction=0.3, offset=0.01),
    "m2po": functools.partial(m2po.m2po, budget=0.04, low=0.3, high=0.5),
}
