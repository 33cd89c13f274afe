"""Measuring the ways in which the library computes products and convolutions."""
