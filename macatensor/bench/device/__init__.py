"""A device measured whole by one command, beside a PyTorch for CUDA where there is one."""
