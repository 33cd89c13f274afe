"""Benchmarks as ratios to native PyTorch, measured interleaved in one run."""
