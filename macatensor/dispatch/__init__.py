"""An operator's way from ``__torch_dispatch__`` to a kernel, a view, or PyTorch's kernel on the host."""
