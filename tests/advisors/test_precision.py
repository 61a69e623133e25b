"""``precision: auto``: the fastest format that pays on every member."""

from __future__ import annotations

import pytest

from workers.advisors.precision import LEAST_SPEED_UP, choose_precision
from workers.plan import Format

GPU = {"fp32": 1.0, "bf16": 0.2, "fp16": 0.19}
OLD_GPU = {"fp32": 1.0, "bf16": 2.0, "fp16": 0.3}
CPU = {"fp32": 1.0, "bf16": 3.5, "fp16": 11.0}


@pytest.mark.parametrize("asked", ["fp32", "bf16", "fp16"])
def test_a_format_that_was_asked_for_is_taken_whatever_was_measured(asked: str) -> None:
    chosen = choose_precision(asked, [CPU])
    assert (chosen.format, chosen.why) == (asked, "asked for in the spec")


@pytest.mark.parametrize(
    ("members", "format"),
    [
        ([GPU], Format.BF16),
        ([OLD_GPU], Format.FP16),
        ([CPU], Format.FP32),
        ([GPU, OLD_GPU], Format.FP16),
        ([GPU, CPU], Format.FP32),
        ([], Format.FP32),
        ([{}], Format.FP32),
        ([GPU, {"fp32": 1.0}], Format.FP32),
        ([{"fp32": 1.0, "bf16": 1 / 1.14}], Format.FP32),
        ([{"fp32": 1.0, "bf16": 1 / 1.16}], Format.BF16),
    ],
)
def test_auto_takes_what_pays_on_every_member_and_bf16_before_fp16(
    members: list[dict[str, float]], format: Format
) -> None:
    assert choose_precision("auto", members).format is format


def test_the_reason_tells_the_measurement() -> None:
    assert choose_precision("auto", [CPU, CPU]).why == (
        f"auto: fp32, as a lower format must be {LEAST_SPEED_UP} times as fast on every worker, "
        "measured: bf16 0.29 times and fp16 0.09 times"
    )
    assert choose_precision("auto", [GPU]).why == (
        "auto: bf16, as bf16 5.00 times and fp16 5.26 times as fast as fp32 on the slowest worker"
    )
