"""What is worth an answer at once, while whoever asks is willing to wait. Pure."""

from __future__ import annotations

from workers.status import JobSnapshot, Phase, RunPhase


class Answers:
    """The answers to one asker: ``told`` notes one, and ``is_news`` compares with it.

    ``is_short``: that the run has begun is no news by itself, as there may be more to tell before that is written down.
    ``num_news`` are all the records, rows and checkpoints that have ever come.
    """

    def __init__(self, *, is_short: bool) -> None:
        self._is_short = is_short
        self._told: tuple[object, ...] = ()

    def told(self, snapshot: JobSnapshot, num_news: int) -> None:
        """This is known to whoever asks."""
        self._told = self._gist(snapshot, num_news)

    def is_news(self, snapshot: JobSnapshot, num_news: int, *, has_all: bool) -> bool:
        """Whether there is something to tell; of stopping only once nothing will come any more (``has_all``)."""
        if snapshot.phase is RunPhase.STOPPING:
            return has_all
        return self._gist(snapshot, num_news) != self._told

    def _gist(self, snapshot: JobSnapshot, num_news: int) -> tuple[object, ...]:
        """How far the run is, and at its end or a line whether there is more to be stored."""
        done = tuple(view.worker_id for view in snapshot.workers if view.phase in (Phase.DONE, Phase.HELD))
        is_ending = bool(done) or snapshot.phase in (RunPhase.STOPPING, RunPhase.ENDED)
        is_begun = self._is_short and snapshot.phase in (RunPhase.STARTING, RunPhase.RUNNING)
        run = RunPhase.RUNNING if is_begun else (snapshot.phase, snapshot.has_trained)
        return (run, snapshot.outcome, done, num_news if is_ending else 0)
