"""THE table of algorithms: a name gives a row of free choices.

A row says which advantage, keep rule, objective and reduction make up an algorithm and with which
published constants. It holds no control flow: `update.py` composes a row into a loss, and the
trainer asks the row (`needs_critic`, ...), never its name.

To add an algorithm: one function in `advantages/`, `keep_rules/` or `objectives/`, its line in
`parts.py`, and one row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.algorithms.parts import (
    ADVANTAGES,
    CORRECTIONS,
    KEEP_RULES,
    OBJECTIVES,
    TERMS,
    WHITENINGS,
)
from jaxrl_single.algorithms.row import Algorithm

_ROWS = (
    Algorithm(
        name="sao",
        paper="SAO, arXiv 2607.07508",
        advantage=ADVANTAGES["critic_gae"],
        keep_rule=KEEP_RULES["dis"],
        objective=OBJECTIVES["sao"],
        reduction="token_mean",
        num_critic_steps=2,
    ),
    Algorithm(
        name="sao_step_average",
        paper="SAO, arXiv 2607.07508, appendix A.1",
        advantage=ADVANTAGES["step_average"],
        keep_rule=KEEP_RULES["dis"],
        objective=OBJECTIVES["sao"],
        reduction="token_mean",
        num_critic_steps=2,
    ),
    Algorithm(
        name="sao_step_last",
        paper="SAO, arXiv 2607.07508, appendix A.1",
        advantage=ADVANTAGES["step_last"],
        keep_rule=KEEP_RULES["dis"],
        objective=OBJECTIVES["sao"],
        reduction="token_mean",
        num_critic_steps=2,
    ),
    Algorithm(
        name="vapo",
        paper="VAPO, arXiv 2504.05118",
        advantage=ADVANTAGES["critic_gae"].having(lambda_alpha=0.05),
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"].having(low=0.2, high=0.28),
        reduction="token_mean",
        terms={"positive_nll": TERMS["positive_nll"]},
        num_critic_steps=1,
    ),
    Algorithm(
        name="ppo",
        paper="PPO, arXiv 1707.06347",
        advantage=ADVANTAGES["fixed_gae"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="token_mean",
        whitening=WHITENINGS["tokens"],
        ratio_reference="proximal",
        num_minibatches=4,
        num_critic_steps=1,
    ),
    Algorithm(
        name="decoupled_ppo",
        paper="Batch size-invariance for policy optimization, arXiv 2110.00641",
        advantage=ADVANTAGES["fixed_gae"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="token_mean",
        correction=CORRECTIONS["engine_tis"],
        whitening=WHITENINGS["tokens"],
        ratio_reference="proximal",
        num_minibatches=4,
        num_critic_steps=1,
    ),
    Algorithm(
        name="rlef",
        paper="RLEF, arXiv 2410.02089",
        advantage=ADVANTAGES["turn_level"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="token_mean",
        # The paper has the KL within the reward, beta 0.05. In the loss the critic's target is the
        # return of the task alone, so that its explained variance can be compared between rows.
        terms={"reference_kl": TERMS["reference_kl"].having(coefficient=0.05)},
        num_critic_steps=1,
    ),
    Algorithm(
        name="reinforce",
        paper="Simple statistical gradient-following algorithms (Williams, 1992)",
        advantage=ADVANTAGES["batch_mean"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["sao"],
        reduction="token_mean",
    ),
    Algorithm(
        name="running_mean",
        paper="SAO, arXiv 2607.07508, ablation of the critic",
        advantage=ADVANTAGES["running_mean"],
        keep_rule=KEEP_RULES["dis"],
        objective=OBJECTIVES["sao"],
        reduction="token_mean",
    ),
    Algorithm(
        name="spo",
        paper="SPO, arXiv 2509.13232",
        advantage=ADVANTAGES["spo"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"].having(low=0.2, high=0.28),
        reduction="token_mean",
        whitening=WHITENINGS["trajectories"],
    ),
    Algorithm(
        name="flash_reinforce",
        paper="FlashREINFORCE (NVIDIA, 2026)",
        advantage=ADVANTAGES["batch_mean"],
        keep_rule=KEEP_RULES["flash_trust_region"],
        objective=OBJECTIVES["sao"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="flash_token_mean",
        paper="FlashREINFORCE (NVIDIA, 2026), ablation",
        advantage=ADVANTAGES["batch_mean"],
        keep_rule=KEEP_RULES["flash_trust_region"],
        objective=OBJECTIVES["sao"],
        reduction="token_mean",
    ),
    Algorithm(
        name="flash_constant_length",
        paper="FlashREINFORCE (NVIDIA, 2026), ablation",
        advantage=ADVANTAGES["batch_mean"],
        keep_rule=KEEP_RULES["flash_trust_region"],
        objective=OBJECTIVES["sao"],
        reduction="fixed_length",
        fixed_length=1024,
    ),
    Algorithm(
        name="flash_no_is",
        paper="FlashREINFORCE (NVIDIA, 2026), ablation",
        advantage=ADVANTAGES["batch_mean"],
        keep_rule=KEEP_RULES["flash_trust_region"],
        objective=OBJECTIVES["score"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="flash_no_trust",
        paper="FlashREINFORCE (NVIDIA, 2026), ablation",
        advantage=ADVANTAGES["batch_mean"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["sao"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="klpo",
        paper="KLPO, arXiv 2610.08963, token route",
        advantage=ADVANTAGES["reward"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["klpo"],
        reduction="sequence_sum",
    ),
    Algorithm(
        name="klpo_sequence",
        paper="KLPO, arXiv 2610.08963, sequence route",
        advantage=ADVANTAGES["reward"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["klpo_sequence"],
        reduction="sequence_sum",
    ),
    Algorithm(
        name="bellman_bpo",
        paper="Bellman BPO, arXiv 2609.15987, practical form",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["omega_mask"],
        objective=OBJECTIVES["bellman_bpo"],
        reduction="sequence_mean",
        num_minibatches=8,
    ),
    Algorithm(
        name="bellman_bpo_exact",
        paper="Bellman BPO, arXiv 2609.15987, exact form",
        advantage=ADVANTAGES["reward_minus_prompt_value"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["bellman_bpo_exact"],
        reduction="sequence_sum",
    ),
    Algorithm(
        name="rebel",
        paper="REBEL, arXiv 2404.16767",
        advantage=ADVANTAGES["reward"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["rebel"],
        reduction="sequence_sum",
    ),
    Algorithm(
        name="sppo",
        paper="SPPO, arXiv 2405.00675",
        advantage=ADVANTAGES["reward"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["sppo"],
        reduction="sequence_sum",
    ),
    Algorithm(
        name="gpo",
        paper="General Preference Optimization, arXiv 2410.02197",
        advantage=ADVANTAGES["reward"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["gpo"],
        reduction="sequence_sum",
    ),
    Algorithm(
        name="grpo",
        paper="GRPO, arXiv 2402.03300",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="grpo_clip_higher",
        paper="DAPO, arXiv 2503.14476",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"].having(high=0.28),
        reduction="token_mean",
    ),
    Algorithm(
        name="grpo_dis",
        paper="SAO, arXiv 2607.07508, ablation of the single rollout",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["dis"],
        objective=OBJECTIVES["sao"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="dr_grpo",
        paper="Dr. GRPO, arXiv 2503.20783",
        advantage=ADVANTAGES["group_mean"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="fixed_length",
        fixed_length=1024,
    ),
    Algorithm(
        name="rloo",
        paper="RLOO, arXiv 2402.14740",
        advantage=ADVANTAGES["leave_one_out"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["sao"],
        reduction="sequence_sum",
    ),
    Algorithm(
        name="gspo",
        paper="GSPO, arXiv 2507.18071",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["gspo"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="cispo",
        paper="CISPO, arXiv 2506.13585",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["cispo"],
        reduction="token_mean",
    ),
    Algorithm(
        name="sapo",
        paper="Soft Adaptive Policy Optimization, arXiv 2511.20347",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["soft_gate"],
        objective=OBJECTIVES["sao"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="icepop",
        paper="IcePop, arXiv 2510.18855",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["icepop"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="sequence_mean",
        correction=CORRECTIONS["engine_ratio"],
        ratio_reference="proximal",
    ),
    Algorithm(
        name="kpop",
        paper="KPop (Ring-1T notes, 2025)",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["kpop"],
        objective=OBJECTIVES["sao"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="estr",
        paper="ESTR, arXiv 2607.22186",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["estr"],
        objective=OBJECTIVES["sao"],
        reduction="token_mean",
    ),
    Algorithm(
        name="m2po",
        paper="M2PO, arXiv 2510.01161",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["m2po"],
        objective=OBJECTIVES["sao"],
        reduction="token_mean",
    ),
    Algorithm(
        name="dppo",
        paper="DPPO, arXiv 2602.04879",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["dppo_tv"],
        objective=OBJECTIVES["cispo"].having(high=19.0),
        reduction="token_mean",
    ),
    Algorithm(
        name="trm",
        paper="Trust region masking, arXiv 2512.23075",
        advantage=ADVANTAGES["group_normalised"],
        keep_rule=KEEP_RULES["trm"],
        objective=OBJECTIVES["sao"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="branching_bpo",
        paper="Branching Policy Optimization, arXiv 2607.14171",
        advantage=ADVANTAGES["branching"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="token_mean",
    ),
    Algorithm(
        name="three_spo",
        paper="3SPO, arXiv 2606.09961",
        advantage=ADVANTAGES["three_spo"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="token_mean",
        terms={"reference_kl": TERMS["reference_kl"]},
    ),
    Algorithm(
        name="trace",
        paper="TRACE, arXiv 2607.13988",
        advantage=ADVANTAGES["trace"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="sequence_mean",
    ),
    Algorithm(
        name="gigrpo",
        paper="GiGPO, arXiv 2505.10978",
        advantage=ADVANTAGES["gigrpo"],
        keep_rule=KEEP_RULES["none"],
        objective=OBJECTIVES["ppo_clip"],
        reduction="token_mean",
    ),
)
TABLE: dict[str, Algorithm] = {row.name: row for row in _ROWS}


def get(name: str, overrides: Mapping[str, Any] | None = None) -> Algorithm:
    """The row `name` with some of its fields and hyper-parameters replaced.

    Args:
      name: a key of TABLE.
      overrides: by dotted name. "keep_rule": another part by its name in `parts.py`, with its
        published constants; "keep_rule.low": a hyper-parameter; "terms": comma list of auxiliary
        losses; "terms.positive_nll.coefficient"; "reduction", "num_minibatches" and so on.
        Parts are replaced before hyper-parameters, whatever the order.

    Raises:
      ValueError: unknown name, field, hyper-parameter, part or choice, or a value of another type;
        the message lists the valid ones.
    """
    if name not in TABLE:
        raise ValueError(f"unknown algorithm {name!r}; known are {sorted(TABLE)}")
    return row_lib.override(TABLE[name], overrides or {})
