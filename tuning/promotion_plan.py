"""How many runs a promotion takes. Pure."""

LOOKS = (5, 8, 12, 20)
"""Numbers of pairs at which is looked: at the first only to give up, as five sign flips prove nothing."""

NUM_FINALISTS = 3
