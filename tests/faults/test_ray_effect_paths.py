"""The list of crash points within blocking calls on Ray is complete; none of them needs a Ray to tell that."""

from __future__ import annotations

import pytest

from tests.faults.ray_effect_paths import LEFT_OUT, POINTS, SOURCES, effects

CODE = tuple(source.read_text() for source in SOURCES)


def test_after_every_effect_of_a_blocking_call_a_reconciler_dies_or_it_is_said_why_not() -> None:
    dies = {point for point, _ in POINTS}
    assert not dies & LEFT_OUT.keys()
    assert effects(CODE) == dies | LEFT_OUT.keys(), "add what is new to POINTS, or to LEFT_OUT and say why"


@pytest.mark.parametrize(
    ("function", "statements", "point"),
    [
        ("end_pools(self, sweep_id: str) -> None", ("self.unhost('')",), "end_pools/unhost"),
        ("forget_dead(self) -> None", ("ray.kill(None)",), "keep_spares/forget_dead"),
        ("take(self, spare: SpareName, name: str) -> bool", ("self.give_back(spare)",), "keep_spares/give_back-2"),
        ("_kill(self, spare: SpareName) -> None", ("ray.kill(None)",), "keep_spares/_kill-2"),
        ("_see(self) -> ClusterView", ("request_resources()", "request_resources()"), "view/_see-2"),
        ("host_of(self, sweep_id: str) -> str | None", ("[self.take(None, '') for _ in '']",), "start_controller/take"),
    ],
)
def test_an_effect_that_is_added_to_a_blocking_call_is_found(
    function: str, statements: tuple[str, ...], point: str
) -> None:
    begin = f"    def {function}:\n"
    assert sum(begin in source for source in CODE) == 1
    added = "".join(f"        {statement}\n" for statement in statements)
    changed = tuple(source.replace(begin, f"{begin}{added}") for source in CODE)
    assert point in effects(changed) - effects(CODE)


def test_one_effect_alone_is_none_that_a_reconciler_can_die_within() -> None:
    begin = "    def host_of(self, sweep_id: str) -> str | None:\n"
    changed = tuple(source.replace(begin, f"{begin}        self.take(None, '')\n") for source in CODE)
    assert changed != CODE
    assert effects(changed) == effects(CODE)
