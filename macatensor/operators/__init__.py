"""Operators that need more than a row and a kernel."""
