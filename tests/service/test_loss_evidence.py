"""What is told of the loss that an exchange costs, and that nothing is called measured which was not."""

from __future__ import annotations

import pytest

from service.loss_evidence import loss_in_words
from tests.benchmarks.compression_training import ALONE, CONTROL, VARIANTS, schemes

PAIRED = "by paired runs of two ranks (README has what they showed)"
OF_FOUR = {
    "int8": "by paired runs of two ranks and of four (README has what they showed)",
    "int4": "by paired runs of two ranks; of four it was worse in one setting of four (README has what they showed)",
}
NOT_PAIRED = "by its formats, and was not measured in paired runs (README has those that were)"


@pytest.mark.parametrize("name", sorted({*schemes()} - {CONTROL}))
def test_what_the_benchmark_compares_counts_by_paired_runs(name: str) -> None:
    assert OF_FOUR.get(name, PAIRED) in loss_in_words(name.partition(" ")[0], VARIANTS.get(name, {}))


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("bf16 across int4", {}, f"bf16 across int4 counts as near_lossless {NOT_PAIRED}"),
        ("int4 after 3 dense", {}, f"int4 after 3 dense counts as near_lossless {NOT_PAIRED}"),
        ("int8 in buckets of 4 MiB", {}, f"int8 in buckets of 4 MiB counts as near_lossless {NOT_PAIRED}"),
        ("topk", {"fraction": 0.1}, f"topk with fraction 0.1 counts as lossy {NOT_PAIRED}"),
        ("topk", {"fraction": 0.01, "quantise": "int8", "bucket_mib": 25}, f"topk counts as lossy, {PAIRED}"),
        ("topk", {"across": "int4"}, f"topk counts as lossy, {PAIRED}"),
        ("topk", {"warm_up": 5, "momentum": 0.9}, f"topk with momentum 0.9 and warm_up 5 counts as lossy {NOT_PAIRED}"),
        ("powersgd", {"rank": 8}, f"powersgd with rank 8 counts as lossy {NOT_PAIRED}"),
        (ALONE, {"steps": 100}, f"local_steps with steps 100 counts as lossy {NOT_PAIRED}"),
        ("none across none", {}, "none across none counts as lossless, as nothing is rounded"),
    ],
)
def test_what_has_other_settings_than_were_measured_says_so(name: str, options: dict[str, object], told: str) -> None:
    assert loss_in_words(name, options) == told
