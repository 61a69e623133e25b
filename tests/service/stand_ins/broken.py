"""Ends at once with a complaint."""

import sys

sys.exit("the stand-in is broken on purpose")
