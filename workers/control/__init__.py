"""Keeps one job as it should be on Ray; never imports torch."""
