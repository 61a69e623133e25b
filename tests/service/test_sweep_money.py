"""What a sweep will cost and what each of its improvements cost, in money: one CPU second is 2 EUR here."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from service.cost import Prices, is_upper_bound
from service.settings import Settings
from service.sweep_documents import estimate_document
from service.sweep_records import Experience
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.swept import JOB, SWEEPS, Swept, point, sweep_document
from workers.spec_parts import Resources

pytestmark = pytest.mark.anyio

TRAINED = Experience(num_jobs=1, samples_per_epoch=None, samples_per_worker_s=100.0)
BOTH = Prices(cpu_hour=3.6, gpu_hour=36.0, currency="USD")
LARGE = {**JOB, "resources": {"cpus": 2, "gpus": 1}}
"""Such a worker costs 43.2 USD an hour, 0.012 a second."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"price_cpu_hour": 7200.0})


def estimated(known: Experience = TRAINED, prices: Prices = BOTH, **changes: Any) -> Any:
    spec = read_sweep_spec(sweep_document(**{"job": LARGE, **changes}), has_prices=True)
    return estimate_document(spec, known, sample_job(spec).resources, prices)["amount"]


def test_an_estimate_in_money_is_that_in_seconds_by_the_prices_of_what_a_worker_gets() -> None:
    # 8 trials of 3200 samples at 100 a second.
    assert estimated(pruner="none") == {"low": 3.072, "high": 3.072}
    # One in three goes on at 320, 960 and 2880 samples: 8 * (320 + 640/3 + 1920/9 + 320/27) = 6068 samples.
    assert estimated() == {"low": 0.72816, "high": 3.072}
    assert estimated(prices=Prices(None, 36.0, "USD")) == {"low": 0.6068, "high": 2.56}
    assert estimated(job=JOB, prices=Prices(3.6, None, "USD"), pruner="none") == {"low": 0.256, "high": 0.256}


@pytest.mark.parametrize(("instead", "cost"), [(4, 3.072), (24, 6.144)])
def test_a_worker_that_may_have_cpus_instead_costs_as_much_as_the_dearer_of_both(instead: int, cost: float) -> None:
    either = {**JOB, "resources": {"cpus": 2, "gpus": 1, "cpus_instead": instead}}
    assert estimated(job=either, pruner="none") == {"low": cost, "high": cost}


def test_an_estimate_tells_that_even_its_low_amount_may_be_more_than_what_it_costs() -> None:
    def told(instead: float | None, **changes: Any) -> str:
        job = {**JOB, "resources": {"cpus": 2, "gpus": 1, "cpus_instead": instead}}
        spec = read_sweep_spec(sweep_document(job=job, **changes), has_prices=True)
        return str(estimate_document(spec, TRAINED, sample_job(spec).resources, BOTH)["notes"][-1])

    assert told(4) == (
        "the amounts take each worker for the dearer of one with a GPU and one with CPUs instead: it may cost less "
        "than the low figure"
    )
    assert "and so does limits.cost" in told(4, limits={"cost": 5.0})
    assert "CPUs instead" not in told(None)
    assert "CPUs instead" not in told(4, space={"resources.cpus": {"choice": [1, 2]}})


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (0.5, "is less than even the low amount, so it would end"),
        (1.0, "is less than the high amount, so it may"),
        (4.0, ""),
    ],
)
def test_an_estimate_tells_that_a_limit_of_cost_is_less_than_its_amounts(limit: float, told: str) -> None:
    spec = read_sweep_spec(sweep_document(job=LARGE, limits={"cost": limit}), has_prices=True)
    notes = estimate_document(spec, TRAINED, sample_job(spec).resources, BOTH)["notes"]
    assert [told in note for note in notes if note.startswith("limits.cost=")] == ([True] if told else [])


@pytest.mark.parametrize(("instead", "expected"), [(None, False), (4, True), (22, False)])
def test_an_amount_is_a_bound_where_a_gpu_and_what_takes_its_place_cost_unlike(
    instead: float | None, expected: bool
) -> None:
    resources, prices = Resources(cpus=2, gpus=1, cpus_instead=instead), Prices(1.0, 20.0, "EUR")
    assert is_upper_bound(resources, prices) == expected
    assert not is_upper_bound(resources, Prices(1.0, None, "EUR"))


def test_an_estimate_in_money_counts_the_runs_of_a_promotion() -> None:
    # 20 to 80 runs more, of 32 s each.
    assert estimated(pruner="none", promote="digits") == {"low": 28 * 32 * 0.012, "high": 88 * 32 * 0.012}


@pytest.mark.parametrize(
    "given",
    [
        {"prices": Prices(None, None, "USD")},
        {"prices": Prices(3.6, None, "USD")},
        {"known": Experience(num_jobs=0, samples_per_epoch=None, samples_per_worker_s=None)},
        {"space": {"resources.cpus": {"choice": [1, 2]}}},
    ],
    ids=["no prices", "none for GPUs", "speed unknown", "workers differ"],
)
def test_an_estimate_tells_no_amount_where_none_can_be_told(given: dict[str, Any]) -> None:
    assert estimated(**given) is None


async def in_turn(swept: Swept, *values: float) -> None:
    """Trials with these results one after another, each of 20 seconds of a worker."""
    swept.clock.now_s += 100  # the records' own times are those of the first minutes
    for number, value in enumerate(values):
        await swept.begin(point(0.001 * (number + 1)))
        await swept.complete(number, value)


async def test_the_service_estimates_by_its_own_prices(client: httpx2.AsyncClient, swept: Swept) -> None:
    await in_turn(swept, 0.8)
    told = (await client.post(f"{SWEEPS}/estimate", json=sweep_document(pruner="none"))).json()
    # 3200 samples took 20 s.
    assert told["worker_s"] == {"low": 160.0, "high": 160.0}
    assert (told["amount"], told["currency"]) == ({"low": 320.0, "high": 320.0}, "EUR")


async def test_each_improvement_is_told_with_the_money_that_was_paid_since_the_one_before(
    client: httpx2.AsyncClient, swept: Swept
) -> None:
    await in_turn(swept, 0.8, 0.5, 0.9, 0.7)
    report = (await client.get(f"{SWEEPS}/{swept.id}/report")).json()
    assert [(each["trial"], each["worker_s"], each["amount"]) for each in report["improvements"]] == [
        (0, 20.0, 40.0),
        (2, 40.0, 80.0),
    ]
    assert report["cost"] == {"worker_s": 80.0, "amount": 160.0, "currency": "EUR", "is_upper_bound": False}
