"""One installation on one machine: its home, its processes, their ends."""
