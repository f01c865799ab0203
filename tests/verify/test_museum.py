"""Every model of notebooks/museum is convicted, and acquitted once its bug is taken out."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
import torch

from nanogpt.verify.referee import referee

FOLDER = Path(__file__).parents[2] / "notebooks" / "museum"
SEEDS = range(2)


def load(path: Path):
    spec = importlib.util.spec_from_file_location(f"museum_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@torch.inference_mode()
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_*.py")), ids=lambda path: path.stem)
def test_a_public_bug_is_convicted_and_its_repair_acquitted(path):
    exhibit = load(path)
    assert exhibit.__doc__.startswith("https://"), "the first line is the thread's address"
    convict, let_pass = Counter(), Counter()
    for seed in SEEDS:
        sound = referee(exhibit.model(seed, bug=False), seed=seed)
        assert not [f for f in sound.findings + sound.padding if f.verdict == "bug"], sound
        found = referee(exhibit.model(seed, bug=True), seed=seed)
        findings = found.findings + found.padding
        assert any(f.verdict == "bug" for f in findings), f"seed {seed} lets it pass: {found}"
        for f in findings:
            (convict if f.verdict == "bug" else let_pass)[f.way] += 1
    print(f"\n{path.stem}: {exhibit.__doc__.splitlines()[0]}\n{found}\n")
    for label, ways in (("convicted by", convict), ("passes", let_pass)):
        print(label, *(f"  {n} of {len(SEEDS)}  {way}" for way, n in ways.items()), sep="\n")
