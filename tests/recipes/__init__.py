"""Tests of the built-in recipes."""
