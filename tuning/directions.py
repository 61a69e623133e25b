"""Whether less of a metric is better, by the words of its key. Pure."""

from __future__ import annotations

import re
from itertools import pairwise

_ERRORS = frozenset(
    (
        *("loss", "losses", "error", "errors", "err", "entropy", "perplexity", "ppl", "nll", "bce", "xent", "deviance"),
        *("mse", "rmse", "rmsle", "msle", "mae", "mape", "smape", "mase", "wmape", "rmsd", "mpjpe", "epe", "residual"),
        *("wer", "cer", "ter", "mer", "eer", "der", "fid", "lpips", "bpc", "bpb", "brier", "ece", "kl", "divergence"),
        *("distance", "regret", "false", "fpr", "fnr", "failures", "mistakes", "violations"),
    )
)
_EXPENSES = frozenset(("seconds", "ms", "time", "latency", "duration", "memory", "bytes", "bits", "cost"))
_UNITS_OF_TIME = frozenset(("s", "sec", "second", "ms", "min", "minute", "h", "hour", "day"))
_ENDINGS = ("loss", "error", "entropy", "perplexity")
"""Of words that are written together, as in ``logloss``."""

_TURNED = ("neg", "minus")
"""As scikit-learn begins the names of errors that it has turned round."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_less_better(metric: str) -> bool:
    """Whether the key sounds like it. An expense over a time, as in ``bytes_per_s``, is a speed."""
    words = [word.lower() for word in _WORD.findall(metric.partition(".")[2] or metric)]
    if not words or words[0] in _TURNED:
        return False
    if any(word in _ERRORS or word.endswith(_ENDINGS) for word in words) or {"negative", "likelihood"} <= {*words}:
        return True
    is_speed = any(word == "per" and unit in _UNITS_OF_TIME for word, unit in pairwise(words))
    return not is_speed and (words[-1] == "s" or not _EXPENSES.isdisjoint(words))
