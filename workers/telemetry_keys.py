"""The keys under which jobs tell what they measure, and which keys nothing can ever be told under."""

from __future__ import annotations

import difflib
from collections.abc import Collection

TELEMETRY_KEYS = frozenset(
    (
        *("loss", "lr", "global_batch", "micro_batch", "workers", "samples_per_s", "grad_norm", "loss_scale"),
        *("data_s", "compute_s", "exchange_s", "exposed_s", "hidden_s", "encode_s", "decode_s", "optimizer_s"),
        *("wire_bytes", "wire_bytes_across", "wire_ratio", "redone_bytes", "round_steps", "memory_bytes"),
        *("gpu_utilisation", "noise_scale", "useful_tokens", "step_s"),
    )
)
"""What rounds measure; besides there is what the user's code names, ``eval.NAME`` and ``user.NAME``."""

PREFIXES_OF_CODE = ("user.", "eval.")


def can_be_reported(key: str) -> bool:
    """Whether a job may ever tell something under this key."""
    origin, _, name = key.partition(".")
    return key in TELEMETRY_KEYS or (origin in ("eval", "user") and bool(name))


def no_such_key(key: str, known: Collection[str] = TELEMETRY_KEYS) -> str:
    """What to tell of a key that nothing can be reported under, beside the ``known`` ones."""
    name = key.rpartition(".")[2] or "NAME"
    near = difflib.get_close_matches(key, sorted(known), n=1)
    hint = f"did you mean {near[0]!r}? Else write" if near else "write"
    return (
        f"{key!r:.80} is not a telemetry key; {hint} 'eval.{name:.60}' for what `evaluate` returns, "
        f"'user.{name:.60}' for what `loss` returns besides, or one of {', '.join(sorted(known))}"
    )
