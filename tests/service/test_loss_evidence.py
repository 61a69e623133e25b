"""What is told of the loss that an exchange costs, and that nothing is called measured which was not."""

from __future__ import annotations

import re

import pytest

from service.loss_evidence import OF_FOUR, PAIRED, SETTINGS, Paired, loss_in_words
from tests.benchmarks.compression_training import ALONE, CONTROL, VARIANTS, schemes
from tests.readme import GRADIENTS, README
from workers.exchange_options import filled

SHOWN = "in paired runs of two ranks (5 seeds, 95 % intervals) losses ended "
NOT_PAIRED = "by its formats, and was not measured in paired runs (README has those that were)"
COLUMNS = (*("bf16", "fp16", "int8", "int4", "two_four", "topk", "topk warmed up", "topk both", "powersgd"), ALONE)
TOPK = (
    "+41.6 ± 10.9 % (digits, AdamW), -15.0 ± 27.5 % (digits, SGD), +50.7 ± 14.2 % (chargpt, AdamW), "
    "+22.0 ± 7.6 % (chargpt, SGD; 1 diverged) above none's"
)


@pytest.mark.parametrize("name", sorted({*schemes()} - {CONTROL}))
def test_what_the_benchmark_compares_is_told_with_what_it_found(name: str) -> None:
    scheme, options = name.partition(" ")[0], VARIANTS.get(name, {})
    told = loss_in_words(scheme, options)
    num_settings = 2 if "momentum" in options else len(SETTINGS)  # which AdamW has no place for
    assert f": {SHOWN}" in told
    assert told.count(" ± ") == num_settings + len(OF_FOUR.get(scheme, ()))


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("bf16 across int4", {}, f"bf16 across int4 counts as near_lossless {NOT_PAIRED}"),
        ("int4 after 3 dense", {}, f"int4 after 3 dense counts as near_lossless {NOT_PAIRED}"),
        ("int8 in buckets of 4 MiB", {}, f"int8 in buckets of 4 MiB counts as near_lossless {NOT_PAIRED}"),
        ("topk", {"fraction": 0.1}, f"topk with fraction 0.1 counts as lossy {NOT_PAIRED}"),
        ("topk", {"fraction": 0.01, "quantise": "int8", "bucket_mib": 25}, f"topk counts as lossy: {SHOWN}{TOPK}"),
        ("topk", {"across": "int4"}, f"topk counts as lossy: {SHOWN}{TOPK}"),
        ("topk", {"warm_up": 5, "momentum": 0.9}, f"topk with momentum 0.9 and warm_up 5 counts as lossy {NOT_PAIRED}"),
        ("powersgd", {"rank": 8}, f"powersgd with rank 8 counts as lossy {NOT_PAIRED}"),
        (ALONE, {"steps": 100}, f"local_steps with steps 100 counts as lossy {NOT_PAIRED}"),
        ("none across none", {}, "none across none counts as lossless, as nothing is rounded"),
    ],
)
def test_what_has_other_settings_than_were_measured_says_so(name: str, options: dict[str, object], told: str) -> None:
    assert loss_in_words(name, options) == told


def test_what_four_ranks_found_is_told_besides() -> None:
    assert loss_in_words("int4").endswith(
        " above none's; of four ranks +1.6 ± 4.9 % (digits, AdamW), -1.1 ± 1.4 % (digits, SGD), +1.4 ± 0.8 % "
        "(chargpt, AdamW), +0.5 ± 2.2 % (chargpt, SGD)"
    )


def numbers(text: str) -> list[float]:
    return [float(found.replace("\N{MINUS SIGN}", "-")) for found in re.findall(r"[−+]?\d+\.\d+", text)]


@pytest.mark.parametrize(("number", "setting", "dense"), [(n, *setting) for n, setting in enumerate(SETTINGS)])
def test_readme_has_the_same_figures(number: int, setting: str, dense: float) -> None:
    [row] = [line for line in README.splitlines() if re.match(rf"\| {setting}(, momentum)? \|", line)]
    _, _, of_none, *cells = row.split("|")
    assert numbers(of_none)[0] == dense
    for name, cell in zip(COLUMNS, cells, strict=False):
        scheme = name.partition(" ")[0]
        found = PAIRED[scheme, filled(scheme, VARIANTS.get(name, {}))][number]
        told = numbers(cell)
        assert found == (Paired(*told, num_diverged="diverged" in cell) if told else None), (name, cell)


def test_readme_has_the_same_figures_of_four_ranks() -> None:
    text = GRADIENTS.partition("Four ranks, likewise")[2].partition("So `int4` among four")[0]
    flat = [number for name in ("int8", "int4") for one in OF_FOUR[name] for number in one[:2]]
    assert numbers(text) == flat
