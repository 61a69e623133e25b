"""How many runs a promotion takes. Pure."""

LOOKS = (5, 8, 12, 20)
"""Numbers of pairs at which is looked: at the first only to give up, as five sign flips prove nothing."""

NUM_FINALISTS = 3


def num_runs(num_trials: int, *, has_incumbent: bool) -> tuple[int, int]:
    """If all give up at the first look, and if the last one decides: the incumbent trains as often as each finalist.

    ``has_incumbent``: one of the trials is the incumbent itself, which is no finalist; both are 0 where
    nobody else is.
    """
    num_finalists = min(NUM_FINALISTS, num_trials - has_incumbent)
    num_contenders = num_finalists + 1 if num_finalists else 0
    return num_contenders * LOOKS[0], num_contenders * LOOKS[-1]
