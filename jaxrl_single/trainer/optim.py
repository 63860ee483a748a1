"""Which parameters train, and how: ordered (regex, label) rules over parameter paths.

Frozen leaves never meet the optimiser: gradients are taken with respect to the trained leaves
only, so a frozen leaf has no weight gradient, no slot and no decay.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]  # nested dict of arrays


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OptState:
    """What an optimiser keeps between updates.

    Attributes:
      slots: of the transformation, float32 whatever the parameters are.
      masters: the trained leaves in float32 where the parameters are narrower. A bfloat16 has 8
        bits, so an update of less than a 500th of a parameter would be rounded away every time;
        here updates add up, and the parameter follows. {} if all parameters are float32.
    """

    slots: optax.OptState
    masters: Params


FROZEN = "frozen"
# Rules that freeze nothing but what has no gradient, which weight decay would shrink.
ALL_TRAIN = ((".*/router/bias", FROZEN), (".*", "train"))


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A transformation of the gradients of the trained leaves, and which leaves these are.

    Attributes:
      labels: the tree of the parameters with a label at each leaf.
      transform: works on the tree that `trainable(params, labels)` gives.
    """

    labels: Params
    transform: optax.GradientTransformation

    def init(self, params: Params) -> OptState:
        """The state before the first update of these parameters."""
        trained = trainable(params, self.labels)
        wide = _float32(trained)
        return OptState(self.transform.init(wide), trainable(wide, _widths(trained)))


def build(
    params: Params,
    *,
    rules: Sequence[tuple[str, str]],
    transforms: Mapping[str, optax.GradientTransformation],
    clip_norm: float,
) -> Optimizer:
    """Labels each parameter by the first rule that matches its whole path.

    Args:
      params: arrays or shapes.
      rules: ordered (regex, label); a label is "frozen" or a key of `transforms`.
      transforms: what happens to the gradients of each label, after clipping.
      clip_norm: of the global norm over all trained leaves together; 0 = no clipping.

    Raises:
      ValueError: a parameter matches no rule, a label is unknown, or nothing trains.
    """
    labels = label(params, rules)
    used = set(jax.tree.leaves(labels)) - {FROZEN}
    if unknown := used - set(transforms):
        raise ValueError(
            f"parameter rules use the labels {sorted(unknown)}; allowed are {FROZEN!r} and "
            f"{sorted(transforms)}"
        )
    if not used:
        raise ValueError(f"the rules {tuple(rules)} freeze every parameter; nothing would train")
    chosen = {name: transforms[name] for name in sorted(used)}
    transform = optax.multi_transform(chosen, trainable(labels, labels))
    if clip_norm > 0:
        transform = optax.chain(optax.clip_by_global_norm(clip_norm), transform)
    return Optimizer(labels=labels, transform=transform)


def apply(
    params: Params, opt_state: OptState, optimizer: Optimizer, gradients: Params
) -> tuple[Params, OptState]:
    """One update from the gradients of the trained leaves; frozen leaves are passed through.

    The arithmetic is float32, and so is what the next update starts from.
    """
    wide = values(params, opt_state, optimizer)
    updates, slots = optimizer.transform.update(_float32(gradients), opt_state.slots, wide)
    opt_state = dataclasses.replace(opt_state, slots=slots)
    return with_values(params, opt_state, optimizer, jax.tree.map(jnp.add, wide, updates))


def values(params: Params, opt_state: OptState, optimizer: Optimizer) -> Params:
    """The trained leaves in float32: the masters where there are any."""
    trained = trainable(params, optimizer.labels)
    return merge(frozen(trained, _widths(trained)), opt_state.masters)


def with_values(
    params: Params, opt_state: OptState, optimizer: Optimizer, wide: Params
) -> tuple[Params, OptState]:
    """Both with these values (float32) of the trained leaves; parameters are rounded to nearest."""
    trained = trainable(params, optimizer.labels)
    rounded = jax.tree.map(lambda old, new: new.astype(old.dtype), trained, wide)
    masters = trainable(wide, _widths(trained))
    moved = merge(rounded, frozen(params, optimizer.labels))
    return moved, dataclasses.replace(opt_state, masters=masters)


def adamw(
    learning_rate: float | Callable[[jax.Array], jax.Array],
    *,
    b1: float,
    b2: float,
    weight_decay: float,
) -> optax.GradientTransformation:
    """AdamW, eps 1e-8, decay on every leaf it is given; its state remembers the learning rate."""
    constants = {"b1": b1, "b2": b2, "eps": 1e-8, "weight_decay": weight_decay}
    with_memory = optax.inject_hyperparams(optax.adamw, static_args=tuple(constants))
    return with_memory(learning_rate=learning_rate, **constants)


def last_learning_rate(opt_state: OptState) -> jax.Array:
    """Of the newest update of the first label, f32; NaN if its transform does not remember it."""
    found = optax.tree_utils.tree_get_all_with_path(opt_state.slots, "learning_rate")
    return jnp.float32(found[0][1]) if found else jnp.float32(jnp.nan)


DECAYS = ("linear", "cosine")


def warmup(
    peak: float,
    *,
    warmup_steps: int,
    decay: str = "linear",
    decay_steps: int = 0,
    final_fraction: float = 1.0,
) -> Callable[[jax.Array], jax.Array]:
    """Linear from peak / warmup_steps at the first update to `peak`, then a decay.

    The decay ends at update `decay_steps` with `final_fraction` x peak and stays there; 0 = none.
    "linear" falls from the first update on, "cosine" by half a wave from the end of the warm-up
    on. Neither depends on how long a run is, so a run may be prolonged.

    Raises:
      ValueError: unknown decay.
    """
    if decay not in DECAYS:
        raise ValueError(f"decay of the learning rate is {decay!r}, allowed are {DECAYS}")

    def schedule(count):
        rise = jnp.minimum(1.0, (count + 1) / max(warmup_steps, 1))
        if not decay_steps:
            return peak * rise
        if decay == "linear":
            done = jnp.minimum(1.0, count / decay_steps)
        else:
            last = max(1, decay_steps - max(warmup_steps, 1))
            progress = jnp.clip((count + 1 - max(warmup_steps, 1)) / last, 0, 1)
            done = (1 - jnp.cos(jnp.pi * progress)) / 2
        return peak * rise * (1 - (1 - final_fraction) * done)

    return schedule


def label(params: Params, rules: Sequence[tuple[str, str]]) -> Params:
    """The tree of labels; first rule that matches the whole path ("layers/attention/q_proj") wins.

    Raises:
      ValueError: parameters without a rule, by path.
    """
    unmatched = []

    def choose(path, _):
        name = path_name(path)
        for pattern, chosen in rules:
            if re.fullmatch(pattern, name):
                return chosen
        unmatched.append(name)
        return FROZEN

    labels = jax.tree_util.tree_map_with_path(choose, params)
    if unmatched:
        raise ValueError(
            f"no rule matches the parameters {unmatched}; rules are tried in order and must "
            f"match the whole path: {[pattern for pattern, _ in rules]}"
        )
    return labels


def path_name(path: tuple) -> str:
    """A key path of jax as "layers/attention/q_proj"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def trainable(params: Params, labels: Params) -> Params:
    """The nested dict without its frozen leaves (and without dicts that hold only such)."""
    return _select(params, labels, keep_frozen=False)


def frozen(params: Params, labels: Params) -> Params:
    """The complement of `trainable`."""
    return _select(params, labels, keep_frozen=True)


def merge(first: Params, second: Params) -> Params:
    """The nested dict that holds the leaves of both; `merge(trainable(p), frozen(p)) == p`."""
    merged = dict(first)
    for name, value in second.items():
        merged[name] = merge(merged[name], value) if name in merged else value
    return dict(sorted(merged.items()))


def table(params: Params, labels: Params) -> str:
    """One line per parameter (label, shape, path) and a count per label, for the log."""
    flat = jax.tree_util.tree_leaves_with_path(params)
    lines, sizes = [], collections.Counter()
    for (path, leaf), chosen in zip(flat, jax.tree.leaves(labels), strict=True):
        lines.append(f"{chosen:<10} {leaf.shape!s:<20} {path_name(path)}")
        sizes[chosen] += leaf.size
    totals = [f"{chosen:<10} {size:,} parameters" for chosen, size in sorted(sizes.items())]
    return "\n".join(lines + totals)


def _widths(tree: Params) -> Params:
    """Labels of a tree of parameters: "narrow", or FROZEN where there is nothing to widen."""
    return jax.tree.map(lambda leaf: FROZEN if leaf.dtype == jnp.float32 else "narrow", tree)


def _float32(tree: Params) -> Params:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def _select(tree: Params, labels: Params, *, keep_frozen: bool) -> Params:
    kept = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            if below := _select(value, labels[name], keep_frozen=keep_frozen):
                kept[name] = below
        elif (labels[name] == FROZEN) == keep_frozen:
            kept[name] = value
    return kept
