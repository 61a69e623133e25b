"""Tests of the pure heart of sweeps."""
