"""Operators judged from the same inputs: what an operator itself adds to the error."""
