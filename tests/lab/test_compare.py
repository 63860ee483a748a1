"""`--algorithm=all`: one table of all rows, and why some are not applicable."""

import json
import math

import jax
import numpy as np
import pytest

from jaxrl_single.algorithms import table
from jaxrl_single.lab import compare, records
from tests.lab import independent, independent_losses, recordings

# Little of the mathematics has to be compiled for these.
FEW = ("sao", "reinforce", "flash_reinforce", "klpo", "rlef", "rloo")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(table, "TABLE", {name: table.TABLE[name] for name in FEW})


def test_the_numbers(few):
    data = recordings.make_records()
    for record in data:
        del record["ref_logprobs"]
    with jax.enable_x64(True):
        found = records.parse_lines(enumerate(map(json.dumps, data), start=1))
        reference, rows = compare.compare(found)
    assert reference == "sao"
    by_name = {row.algorithm: row for row in rows}
    assert tuple(by_name) == FEW
    expected = {name: independent_losses.coefficients(name, data) for name in FEW if name != "rlef"}
    sao = np.concatenate(expected["sao"]["coefficients"])
    for name, of in expected.items():
        flat = np.concatenate(of["coefficients"])
        both = (flat != 0) & (sao != 0)
        row = by_name[name]
        assert row.mass == pytest.approx(np.abs(flat).sum(), rel=1e-6)
        assert row.agreement == pytest.approx(np.mean((flat * sao > 0)[both]))
    batch = independent.Batch(data)
    kept = np.concatenate(independent.dis(batch, None))
    assert by_name["sao"].kept == pytest.approx(kept.mean())
    assert (by_name["sao"].agreement, by_name["sao"].other_mass) == (1.0, 0.0)
    draws = np.concatenate(expected["klpo"]["aux_coefficients"])
    assert by_name["klpo"].other_mass == pytest.approx(np.abs(draws).sum(), rel=1e-6)
    assert "ref_logprobs is missing" in by_name["rlef"].missing
    assert math.isnan(by_name["rlef"].mass)


def test_the_text_and_the_file(few, tmp_path):
    data = recordings.make_records()
    for record in data:
        del record["values"]
        record["group_id"] = record["id"]  # nothing to compare it with
    path = recordings.write(tmp_path / "in.jsonl", data)
    output = tmp_path / "out.jsonl"
    with jax.enable_x64(True):
        text = compare.compare_file(path, output, {})
    lines = text.splitlines()
    assert lines[0] == "signs are compared with those of reinforce"
    assert lines[1].split() == [
        "algorithm",
        "kept",
        "mass",
        "other",
        "mass",
        "same",
        "sign",
        "loss",
    ]
    assert [line.split()[0] for line in lines[2:5]] == ["reinforce", "flash_reinforce", "klpo"]
    assert lines[5].startswith("sao ")
    assert "not applicable: line 1: values is missing" in lines[5]
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["algorithm"] for row in rows if row["applicable"]] == list(FEW[1:4])
    assert rows[0]["mass"] is None
    with pytest.raises(ValueError, match="one algorithm, not all"):
        compare.compare_file(path, None, {"keep_rule.low": 0.5})
