"""Whether somebody has drawn from the random generators that a whole process shares."""

from __future__ import annotations

import random

import numpy as np
import torch


def fingerprint() -> int:
    """Differs where the next numbers of ``random``, numpy or torch's CPU generator do (0.1 ms)."""
    _, numpy_keys, *numpy_rest = np.random.get_state(legacy=True)
    torch_state = torch.default_generator.get_state().numpy().tobytes()
    return hash((random.getstate(), np.asarray(numpy_keys).tobytes(), tuple(numpy_rest), torch_state))
