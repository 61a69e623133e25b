"""Measurements side by side with peers, run by hand: ratios of one run, never asserted by the tests."""
