"""Tests of the pages in headless Chromium."""
