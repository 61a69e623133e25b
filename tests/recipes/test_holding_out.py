from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]  # the package has no types

from workers.recipes.holding_out import stratified


@given(
    counts=st.lists(st.integers(5, 40), min_size=1, max_size=6),
    fraction=st.sampled_from([0.2, 0.25, 0.5]),
    seed=st.integers(0, 2**31),
)
def test_the_samples_are_those_that_scikit_learn_takes(counts: list[int], fraction: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    theirs = train_test_split(np.arange(len(labels)), test_size=fraction, random_state=seed, stratify=labels)
    ours = stratified(labels, fraction, seed)
    assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]


def test_digits_are_read_without_importing_scikit_learn() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys; from workers.recipes.digits import build; build({}); print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not {name for name in told.stdout.split() if name.split(".")[0] == "sklearn"}
