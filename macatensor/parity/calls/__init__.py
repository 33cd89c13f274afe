"""Calls of operators, drawn by family: what parity tests ask."""
