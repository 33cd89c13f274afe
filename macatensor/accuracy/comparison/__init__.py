"""Comparing two recorded runs."""
