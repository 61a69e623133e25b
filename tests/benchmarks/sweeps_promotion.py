"""Promotion against stopping in ASHA, at equal epochs: the true rank of the winner on a full grid of digits.

    python -m tests.benchmarks.sweeps_promotion --repeats 100 --output results.jsonl

Our own search (``tuning/search.py``) over recorded learning curves (``sweeps_grid``), with the same points in the same
order for both kinds, two trials at a time, an epoch taking as long wherever. After so many epochs in all, the winner is
the best complete trial, or the best of those that came furthest. Sweeps see the curves of one seed; the truth is the
mean at the last epoch over the others.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import spread_document
from tests.benchmarks.sweeps_grid import BATCHES, EPOCHS, HIDDENS, LRS, POINTS, Curves, Point, read_curves
from tests.benchmarks.sweeps_setting import ENTRYPOINT, METRIC, NUM_TRAIN, REDUCTION
from tuning.limits import Used
from tuning.orders import Finish, Hold, Order, Prune, Resume, Standing, Start
from tuning.parsing import parse_sweep_spec
from tuning.search import Search
from tuning.trial import Report, Trial, TrialState
from tuning.values import Params

PARALLEL = 2
KINDS = {"promotion": True, "stopping": False}
STANDING = Standing(num_trials=len(POINTS), samples_per_epoch=NUM_TRAIN, used=Used(time_s=0.0, cost=None))


@dataclass(slots=True)
class Replay:
    """A sweep whose trials read their reports from curves."""

    search: Search
    curves: Curves
    trials: dict[int, Trial] = field(default_factory=dict)
    turn: list[int] = field(default_factory=list)
    num_epochs: int = 0
    is_over: bool = False

    def winners(self, budgets: Sequence[int]) -> dict[int, Point | None]:
        """Who wins after so many epochs; None where nothing was reported by then."""
        found = {}
        self._ask([])
        for budget in sorted(budgets):
            while self.num_epochs < budget and not self.is_over:
                self._train_one()
            found[budget] = self._winner()
        return found

    def _train_one(self) -> None:
        number = self.turn.pop(0)
        trial = self.trials[number]
        epoch = len(trial.reports) + 1
        value = self.curves.accuracies[_point(trial.params)][epoch - 1]
        trial = replace(trial, reports=(*trial.reports, Report(samples=epoch * NUM_TRAIN, value=value)))
        if epoch == EPOCHS:
            trial = replace(trial, state=TrialState.COMPLETE, value=value)
        else:
            self.turn.append(number)
        self.trials[number] = trial
        self.num_epochs += 1
        self._ask([trial])

    def _ask(self, changed: list[Trial]) -> None:
        for order in self.search.answer(changed, STANDING).orders:
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        match order:
            case Start(number=number, params=params):
                self.trials[number] = Trial(number=number, params=params, state=TrialState.RUNNING)
                self.turn.append(number)
            case Resume(number=number):
                self._become(number, TrialState.RUNNING)
                self.turn.append(number)
            case Hold(number=number):
                self._become(number, TrialState.WAITING)
                self.turn.remove(number)
            case Prune(number=number):
                self._become(number, TrialState.PRUNED)
                self.turn.remove(number)
            case Finish():
                self.is_over = True

    def _become(self, number: int, state: TrialState) -> None:
        self.trials[number] = replace(self.trials[number], state=state)

    def _winner(self) -> Point | None:
        told = [trial for trial in self.trials.values() if trial.reports]
        if not told:
            return None
        furthest = max(trial.samples for trial in told)
        best = max((t for t in told if t.samples == furthest), key=lambda t: (t.reports[-1].value, -t.number))
        return _point(best.params)


@dataclass(frozen=True, slots=True)
class Truth:
    """What points are worth: ``regret`` in accuracy below the best, ``rank`` from 1."""

    worth: Mapping[Point, float]

    def rank(self, point: Point) -> int:
        """One more than there are better ones."""
        return 1 + sum(worth > self.worth[point] for worth in self.worth.values())

    def regret(self, point: Point) -> float:
        """How much better the best one is."""
        return max(self.worth.values()) - self.worth[point]


def truth_of(curves: Sequence[Curves]) -> Truth:
    """The mean over seeds at the last epoch."""
    return Truth({point: statistics.mean(c.accuracies[point][-1] for c in curves) for point in POINTS})


def replay(curves: Curves, seed: int, *, promotes: bool) -> Replay:
    """A sweep that has not begun."""
    spec = parse_sweep_spec(
        {
            "name": "replayed",
            "job": {"entrypoint": ENTRYPOINT, "epochs": EPOCHS},
            "space": {
                "optimizer.lr": {"choice": list(LRS)},
                "batch.global_size": {"choice": list(BATCHES)},
                "config.hidden": {"choice": list(HIDDENS)},
            },
            "metric": METRIC,
            "sampler": "random",
            "pruner": {"asha": {"min_samples": NUM_TRAIN, "reduction": REDUCTION, "promote": promotes}},
            "trials": len(POINTS),
            "parallel": PARALLEL,
            "seed": seed,
        }
    )
    return Replay(Search(spec), curves)


def _point(params: Params) -> Point:
    lr, batch, hidden = (params[path] for path in ("optimizer.lr", "batch.global_size", "config.hidden"))
    return float(lr), int(batch), int(hidden)


def main() -> None:
    """Replay, and print how good winners are."""
    options = _options()
    curves = read_curves()
    if len(curves) < 2:
        raise SystemExit("record the grid first: python -m tests.benchmarks.sweeps_grid")
    ranks: dict[tuple[str, int], list[int]] = {}
    regrets: dict[tuple[str, int], list[float]] = {}
    for seed in range(options.repeats):
        seen = curves[seed % len(curves)]
        truth = truth_of([other for other in curves if other.seed != seen.seed])
        for kind, promotes in KINDS.items():
            for budget, winner in replay(seen, seed, promotes=promotes).winners(options.epochs).items():
                assert winner is not None
                ranks.setdefault((kind, budget), []).append(truth.rank(winner))
                regrets.setdefault((kind, budget), []).append(truth.regret(winner))
    _tell(ranks, regrets, options)


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=100, help="sweeps of each kind, in other orders of points")
    parser.add_argument("--epochs", type=int, nargs="+", default=[50, 100, 200], help="of a sweep in all")
    return parser.parse_args()


def _tell(
    ranks: Mapping[tuple[str, int], list[int]],
    regrets: Mapping[tuple[str, int], list[float]],
    options: argparse.Namespace,
) -> None:
    figures: dict[str, object] = {"repeats": options.repeats, "points": len(POINTS)}
    for budget in sorted(options.epochs):
        for kind in KINDS:
            rank, regret = ranks[kind, budget], regrets[kind, budget]
            quarters = statistics.quantiles(rank, n=4) if len(rank) > 1 else [rank[0]] * 3
            print(
                f"{budget:4d} epochs, {kind:9s}: true rank of the winner of {len(POINTS)}: median {quarters[1]:.1f}, "
                f"quartiles {quarters[0]:.1f} to {quarters[2]:.1f}, mean {statistics.mean(rank):.1f}; "
                f"accuracy below the best: mean {100 * statistics.mean(regret):.2f} points"
            )
            figures[f"{kind}.{budget}"] = {"rank": spread_document(rank), "regret": spread_document(regret)}
        pairs = list(zip(*(ranks[kind, budget] for kind in KINDS), strict=True))
        better, worse = (sum(sign * (b - a) > 0 for a, b in pairs) for sign in (1, -1))
        print(f"{budget:4d} epochs: promotion's winner is the better one {better} times, the worse {worse} times")
        figures[f"pairs.{budget}"] = {"better": better, "worse": worse}
    tell_result(options.output, "sweeps.promotion", ("optuna",), figures)


if __name__ == "__main__":
    main()
