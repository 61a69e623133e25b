"""What the recovery measurement takes from a file of results, and what it says of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.figures import append_result
from tests.benchmarks.recovery_changes import Change
from tests.benchmarks.recovery_results import KIND, earlier, in_lines, num_measured


def change(side: str, seconds: float, *, what: str = "kill", lost: int = 0) -> Change:
    return Change(what=what, side=side, seconds=seconds, gap_s=2 * seconds, lost=lost, load_1min=3.0)


def test_a_later_call_goes_on_from_the_changes_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert earlier(file) == []
    made = [change("concertina", 0.2), change("torchrun", 9.0, lost=4)]
    append_result(file, "recovery.run", {"versions": {"ray": "2.60.0"}})
    for one in made:
        append_result(file, KIND, asdict(one))
    assert earlier(file) == made
    assert [num_measured(made, "kill", side) for side in ("concertina", "torchrun", "ray_train")] == [1, 1, 0]
    assert num_measured(made, "shrink", "torchrun") == 0


def test_each_rival_is_held_against_us_change_by_change() -> None:
    kills = [change("concertina", s) for s in (0.1, 0.2, 0.9)]
    kills += [change("torchrun", s, lost=4) for s in (8.0, 10.0, 12.0)]
    others = [change("ray_train", 50.0, what="node_loss"), change("concertina", 1.0, what="node_loss")]
    told = "\n".join(in_lines([*kills, *others]))
    of_kills, of_node_loss = told.split("kill:")[1].split("node_loss:")
    assert "against torchrun, seconds: 50.0 times" in of_kills
    assert "against torchrun, gap_s: 50.0 times" in of_kills
    assert "lost p50 4 steps" in of_kills
    assert "ray_train" not in of_kills
    assert "against ray_train, seconds: 50.0 times" in of_node_loss
