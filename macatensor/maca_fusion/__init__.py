"""The name of a log: ``TORCH_LOGS=maca_fusion`` shows what ``torch.compile`` fused.

PyTorch reads that variable before it imports anything of ours, and takes a name that it can find as a module.
"""
