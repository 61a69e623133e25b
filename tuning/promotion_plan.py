"""How many runs a promotion takes. Pure."""

LOOKS = (5, 8, 12, 20)
"""Numbers of pairs at which is looked: at the first only to give up, as five sign flips prove nothing."""

NUM_FINALISTS = 3


def num_runs(num_trials: int) -> tuple[int, int]:
    """If all give up at the first look, and if the last one decides: the incumbent trains as often as each finalist."""
    num_contenders = 1 + min(NUM_FINALISTS, num_trials)
    return num_contenders * LOOKS[0], num_contenders * LOOKS[-1]
