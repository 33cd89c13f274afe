"""What PyTorch is told of the device: names, hooks, types and formats."""
