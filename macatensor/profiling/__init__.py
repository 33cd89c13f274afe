"""PyTorch's profiler on maca: what the device did is added to what the profiler of the host has seen."""
