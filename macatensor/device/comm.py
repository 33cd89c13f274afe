"""``torch.maca.comm``: PyTorch's copies between the devices of a process, as ``torch.cuda.comm``."""

from torch.nn.parallel.comm import broadcast as broadcast
from torch.nn.parallel.comm import broadcast_coalesced as broadcast_coalesced
from torch.nn.parallel.comm import gather as gather
from torch.nn.parallel.comm import reduce_add as reduce_add
from torch.nn.parallel.comm import reduce_add_coalesced as reduce_add_coalesced
from torch.nn.parallel.comm import scatter as scatter

__all__ = ["broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter"]
