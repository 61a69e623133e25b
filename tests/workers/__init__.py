"""Tests of the contract modules."""
