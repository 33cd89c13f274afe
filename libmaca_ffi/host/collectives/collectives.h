// The slots comm_* of the host library: ranks of one machine, over memory that they share.
#pragma once
#include "maca.h"

namespace maca {

maca_status comm_id(maca_device*, maca_comm_id* id, maca_reason* reason);
maca_status comm_create(maca_device*, const maca_comm_request* request, maca_comm** comm, maca_reason* reason);
maca_status comm_destroy(maca_device*, maca_comm* comm);
maca_status comm_abort(maca_device*, maca_comm* comm);
maca_status comm_error(maca_device*, maca_comm* comm, maca_reason* reason);

#define MACA_COLLECTIVE(NAME)                                                                              \
  maca_status NAME(maca_device*, maca_comm* comm, const maca_collective* call, void* to, const void* from, \
                   maca_stream* stream, maca_reason* reason)
MACA_COLLECTIVE(comm_all_reduce);
MACA_COLLECTIVE(comm_reduce);
MACA_COLLECTIVE(comm_broadcast);
MACA_COLLECTIVE(comm_all_gather);
MACA_COLLECTIVE(comm_reduce_scatter);

maca_status comm_all_to_all(maca_device*, maca_comm* comm, const maca_collective* call, void* const* to,
                            const uint64_t* to_counts, const void* const* from, const uint64_t* from_counts,
                            maca_stream* stream, maca_reason* reason);
maca_status comm_allocate(maca_device*, uint64_t bytes, void** address);
maca_status comm_free(maca_device*, void* address);

}  // namespace maca
