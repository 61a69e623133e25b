"""Tests against a real local Ray."""
