"""The list of metrics: form, and what happens to a name that is not on it."""

import re

import pytest

from jaxrl_single.metrics import names


def test_every_name_has_its_form_and_its_line():
    for name, meaning in names.NAMES.items():
        assert re.fullmatch(r"[a-z_]+/[a-z0-9_]+", name), name
        assert meaning == meaning.strip(), name
        assert 4 <= len(meaning) <= 100, name
    assert set(names.NAMES) > names.HISTOGRAMS


def test_an_unlisted_name_is_refused_with_the_nearest():
    names.check("episode/reward")
    with pytest.raises(names.UnknownMetric, match=r"'episode/reword'.*'episode/reward'.*names\.py"):
        names.check("episode/reword")


@pytest.mark.parametrize(
    "needed",
    [
        ("episode/reward", "episode/success", "episode/turns", "episode/truncated"),
        ("episode/length_success", "episode/length_failure"),
        ("errors/env", "errors/reward", "errors/sampler", "errors/limit"),
        ("staleness/mean", "staleness/max", "staleness/spans_versions"),
        ("policy/log_ratio_q05", "policy/log_ratio_q50", "policy/log_ratio_q95"),
        ("mismatch/kl", "mismatch/mean", "mismatch/max"),
        ("keep/fraction", "keep/fraction_positive", "keep/fraction_negative"),
        ("keep/masked_low", "keep/masked_high", "keep/entropy_kept", "keep/entropy_masked"),
        ("critic/explained_variance", "critic/loss", "critic/gradient_norm"),
        ("policy/gradient_norm", "policy/entropy"),
        ("time/wait_s", "time/train_s", "time/publish_s"),
        ("speed/trainer_tokens_per_s", "speed/sampler_tokens_per_s"),
        ("staleness/length_trained", "staleness/length_dropped"),
        ("staleness/lengths_trained", "staleness/lengths_dropped"),
        ("train/compilations", "train/empty_update"),
    ],
)
def test_what_a_run_must_show_is_listed(needed):
    assert set(needed) <= set(names.NAMES)
