"""What a worker tells of schemes: their bytes as they are sent, and what it takes to encode and decode them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from workers.training.exchange.codecs import Bf16, Int4
from workers.training.exchange.compressed import Compressed
from workers.training.exchange.costs import measure_schemes
from workers.training.exchange.registry import CODECS


def test_every_format_is_told_with_its_bytes_and_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state()
    told = measure_schemes(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    assert set(told) == set(CODECS)
    assert told["none"].seconds_a_million == 0.0
    assert all(cost.seconds_a_million > 0.0 for name, cost in told.items() if name != "none")
    per_value = {name: cost.bytes_a_value for name, cost in told.items()}
    assert per_value == pytest.approx(
        {"none": 4.0, "bf16": 2.0, "fp16": 2 + 1 / 64, "int8": 1 + 1 / 64, "int4": 0.515625}
    )


def test_what_is_timed_is_an_exchange_of_two_in_which_all_is_encoded_once_and_decoded_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numels = Counter[str]()

    def noted(key: str, method: Callable[..., Any], place: int) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            numels[key] += given[place].numel()
            return method(*given)

        return called

    for codec in (Bf16, Int4):
        monkeypatch.setattr(codec, "encode", noted(f"{codec.name} encoded", codec.encode, 1))
        monkeypatch.setattr(codec, "decode", noted(f"{codec.name} decoded", codec.decode, 2))
    monkeypatch.setattr(Compressed, "start", noted("exchanged", Compressed.start, 2))
    measure_schemes(torch.device("cpu"))
    for name in ("bf16", "int4"):
        assert numels[f"{name} decoded"] == 2 * numels[f"{name} encoded"] > 0
    assert numels["exchanged"] == 2 * (numels["bf16 encoded"] + numels["int4 encoded"])  # fp16 and int8 as often


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_format_that_code_sets_for_all_new_tensors_changes_nothing(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert measure_schemes(torch.device("cpu"), [torch.Size([512, 512])]).keys() > {"topk", "powersgd"}
    finally:
        torch.set_default_dtype(before)


def test_where_a_job_allows_it_lossy_schemes_are_told_with_what_they_send() -> None:
    before = torch.get_rng_state()
    told = measure_schemes(torch.device("cpu"), [torch.Size([512]), torch.Size([512, 512]), torch.Size([2, 3])])
    assert torch.equal(torch.get_rng_state(), before)
    assert set(told) == {*CODECS, "two_four", "topk", "powersgd"}
    assert all(cost.seconds_a_million > 0.0 for name, cost in told.items() if name != "none")
    numel = 512 + 512 * 512 + 6
    assert told["powersgd"].bytes_a_value == pytest.approx(4 * (512 + 6 + 4 * (512 + 512)) / numel)
    assert told["two_four"].bytes_a_value == pytest.approx(0.625 + 1 / 64)
    assert told["topk"].bytes_a_value == pytest.approx(4 / 88, rel=0.02)
