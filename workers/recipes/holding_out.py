"""Holding samples out for evaluation, every class in its share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def stratified(labels: Indices, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Indices of the samples to train on and of those held out, a ``fraction`` rounded up; labels count from 0.

    Sample by sample what scikit-learn's ``train_test_split(test_size=fraction, random_state=seed, stratify=labels)``
    gives, whose import takes a worker longer than torch's.
    """
    rng = np.random.RandomState(seed)
    num_train = len(labels) - int(np.ceil(fraction * len(labels)))
    counts = np.bincount(labels)
    trained = _shares(counts, num_train, rng)
    rest = _shares(counts - trained, len(labels) - num_train, rng)
    train, held_out = list[Indices](), list[Indices]()
    for label, count in enumerate(counts):
        found = np.flatnonzero(labels == label)[rng.permutation(count)]
        train.append(found[: trained[label]])
        held_out.append(found[trained[label] :][: rest[label]])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(held_out))


def _shares(counts: Indices, total: int, rng: np.random.RandomState) -> Indices:
    """Of ``total`` what falls to each class: whole numbers by the largest remainders, of equal ones by chance."""
    exact = counts / counts.sum() * total
    shares: Indices = np.floor(exact).astype(np.int64)
    rest = exact - shares
    while (left := total - int(shares.sum())) > 0:
        tied = np.flatnonzero(rest == rest.max())
        shares[rng.choice(tied, size=min(len(tied), left), replace=False)] += 1
        rest[tied] = -1.0
    return shares
