"""What batch-invariance costs: the kernel of serving/native.cpp against torch.mm."""

from dataclasses import replace

import pytest

from nanogpt.benchmarks import invariance
from nanogpt.config.shapes import SIZES
from nanogpt.engines.toolchain import CannotBuild


def test_each_number_of_rows_has_a_ratio_and_a_line(monkeypatch):
    shape = replace(SIZES["small"], vocab_size=13, n_embd=32, n_layer=1)  # tests/serving builds it
    monkeypatch.setitem(invariance.SIZES, "tiny", shape)
    try:
        rows = invariance.cost("tiny", rows=(1, 5), repeats=1)
    except CannotBuild as error:
        pytest.skip(str(error))
    assert [row["rows"] for row in rows] == [1, 5]
    assert all(row["ratio"]["median"] > 0 for row in rows)
    said = invariance.report("tiny", rows=(5,), repeats=1)
    assert said.startswith("tiny,    5 rows: ")
    with pytest.raises(KeyError):
        invariance.cost("huge")
