"""The backend ``mccl`` of ``torch.distributed``: collectives on device memory."""
