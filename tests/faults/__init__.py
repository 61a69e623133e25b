"""The fault harness: what goes wrong on purpose, and the oracle that says whether anything was lost."""
