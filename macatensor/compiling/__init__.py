"""``torch.compile`` on maca: how Dynamo and fake tensors see the device, and the backend ``maca``."""
