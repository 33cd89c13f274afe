#include "collectives/collectives.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "collectives/fold.h"
#include "collectives/meeting.h"
#include "device_memory.h"
#include "stream.h"

using namespace maca;

struct maca_comm {
  Meeting meeting;
  std::vector<PeerMemory> peers;
  int generation = fork_generation();
  std::mutex error_mutex;
  CollectiveError error{MACA_OK, ""};  // of what ran on a stream

  maca_comm(const maca_comm_request& request) : meeting(request), peers(static_cast<size_t>(request.ranks)) {}
};

namespace maca {
namespace {

enum Kind : uint32_t { kAllReduce = 1, kReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll };

maca_status tell(maca_reason* reason, const CollectiveError& error) {
  if (reason) std::snprintf(reason->text, sizeof reason->text, "%s", error.text.c_str());
  return error.status;
}

// Runs `work`, and tells what it throws.
template <class F> maca_status guarded(maca_reason* reason, const F& work) try {
  work();
  return MACA_OK;
} catch (const CollectiveError& error) {
  return tell(reason, error);
} catch (const std::bad_alloc&) {
  return tell(reason, {MACA_OUT_OF_MEMORY, "the host has no memory left"});
} catch (const std::exception& error) {
  return tell(reason, {MACA_DEVICE_ERROR, error.what()});
}

template <class F> maca_status submit(maca_comm* comm, maca_stream* stream, maca_reason* reason, F work) {
  if (comm->generation != fork_generation())
    return tell(reason, {MACA_INVALID, "a communicator does not survive a fork"});
  if (!stream) return guarded(reason, work);
  stream->stream.submit([comm, work] {
    maca_reason said{sizeof said, ""};
    const maca_status status = guarded(&said, work);
    std::lock_guard lock(comm->error_mutex);
    if (status != MACA_OK && comm->error.status == MACA_OK) comm->error = {MACA_DEVICE_ERROR, said.text};
  });
  return MACA_OK;
}

void move(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// One collective under way on one rank.
struct Run {
  maca_comm* comm;
  maca_collective call;
  Kind kind;
  char* to;
  const char* from;
  Fold fold;

  Meeting& m() const { return comm->meeting; }
  int me() const { return m().rank(); }
  int ranks() const { return m().ranks(); }
  int64_t item() const { return item_size(dtype_of(call.dtype)); }
  int64_t count() const { return static_cast<int64_t>(call.count); }
  int64_t bytes() const { return count() * item(); }

  template <class Before> void begin(int64_t from_bytes, int64_t to_bytes, Before before) const {
    const auto place = [](const void* p, int64_t n) {
      return p && n > Meeting::kSmall ? shared_place(p, static_cast<uint64_t>(n)) : SharedPlace{};
    };
    CollectiveCall said{};
    said.digest = call.digest;
    said.count = call.count;
    said.kind = kind;
    said.dtype = static_cast<uint32_t>(dtype_of(call.dtype));
    said.reduction = static_cast<uint32_t>(call.reduction);
    said.root = static_cast<uint32_t>(call.root);
    said.frees = shared_frees();
    said.from = place(from, from_bytes);
    said.to = place(to, to_bytes);
    m().begin(said, call.timeout_ms, before);
  }
  void begin() const {
    begin(0, 0, [] {});
  }

  // Is that operand of every rank where the others reach it?
  bool all_share(SharedPlace CollectiveCall::* place) const {
    for (int q = 0; q < ranks(); ++q)
      if ((m().call_of(q).*place).descriptor < 0) return false;
    return true;
  }
  char* of_rank(int q, SharedPlace CollectiveCall::* place) const {
    if (q == me()) return place == &CollectiveCall::from ? const_cast<char*>(from) : to;
    const CollectiveCall& said = m().call_of(q);
    char* const found = comm->peers[static_cast<size_t>(q)].find(m().process(q), said.*place, said.frees);
    if (!found)
      m().fail(MACA_DEVICE_ERROR, "the shared memory of rank " + std::to_string(q) + " cannot be mapped here");
    return found;
  }
  std::vector<const void*> all_from(int64_t offset) const {
    std::vector<const void*> found(static_cast<size_t>(ranks()));
    for (int q = 0; q < ranks(); ++q) found[static_cast<size_t>(q)] = of_rank(q, &CollectiveCall::from) + offset;
    return found;
  }
  // Nobody goes on, and writes what others read yet, before all are here.
  void end() const {
    m().post();
    m().wait_for_all(m().progress());
  }
  // What each wrote into `small` before all began.
  std::vector<const void*> all_small(int64_t offset = 0) const {
    std::vector<const void*> found(static_cast<size_t>(ranks()));
    for (int q = 0; q < ranks(); ++q) found[static_cast<size_t>(q)] = m().small(q) + offset;
    return found;
  }

  // Blocks of elements go through the ranks' stages, two under way: stage(k) writes what others read in consume(k),
  // which writes what they read in collect(k).
  template <class Stage, class Consume, class Collect>
  void pipeline(int64_t blocks, const Stage& stage, const Consume& consume, const Collect& collect) const {
    if (blocks == 0) return;
    const uint32_t base = m().progress();
    const auto staged = [&](int64_t k) { return base + static_cast<uint32_t>(k == 0 ? 1 : 2 * k); };
    const auto consumed = [&](int64_t k) {
      return base + static_cast<uint32_t>(k + 1 < blocks ? 2 * k + 3 : 2 * k + 2);
    };
    stage(0);
    m().post();
    for (int64_t k = 0; k < blocks; ++k) {
      if (k + 1 < blocks) {
        stage(k + 1);
        m().post();
      }
      m().wait_for_all(staged(k));
      consume(k);
      m().post();
      m().wait_for_all(consumed(k));
      collect(k);
    }
  }
  template <class F> void each_other(const F& f) const {  // beginning behind this rank: not all with the same one
    for (int i = 1; i < ranks(); ++i) f((me() + i) % ranks());
  }

  void reduce_to(bool is_written) const;
  void all_gather() const;
  void broadcast() const;
  void reduce_scatter() const;
};

// all_reduce, and reduce where `is_written` on the root alone. Each rank adds up its share of every block.
void Run::reduce_to(bool is_written) const {
  const int64_t n = count();
  if (bytes() <= Meeting::kSmall) {
    begin(0, 0, [&] { move(m().small(me()), from, bytes()); });
    const auto sources = all_small();
    void* targets[] = {to};
    if (is_written) fold(call.reduction, ranks(), sources.data(), 1, targets, n);
    return;
  }
  begin(bytes(), is_written ? bytes() : 0, [] {});
  if (kind == kAllReduce && all_share(&CollectiveCall::from) && all_share(&CollectiveCall::to)) {
    const int64_t unit = 4096 / item(), part = ((n + ranks() - 1) / ranks() + unit - 1) / unit * unit;
    const int64_t start = std::min(n, me() * part), size = std::min(part, n - start);
    std::vector<void*> targets(static_cast<size_t>(ranks()));
    for (int q = 0; q < ranks(); ++q)
      targets[static_cast<size_t>(q)] = of_rank(q, &CollectiveCall::to) + start * item();
    if (size) fold(call.reduction, ranks(), all_from(start * item()).data(), ranks(), targets.data(), size);
    return end();
  }
  const int64_t most = m().share() / item(), block = most * ranks();
  // rank q's share of block k
  const auto first = [&](int64_t k, int q) {
    const int64_t rest = std::min(block, n - k * block);
    return k * block + std::min(rest, q * ((rest + ranks() - 1) / ranks()));
  };
  const auto size = [&](int64_t k, int q) {
    return (q + 1 < ranks() ? first(k, q + 1) : std::min(n, (k + 1) * block)) - first(k, q);
  };
  pipeline((n + block - 1) / block,
           [&](int64_t k) {
             each_other([&](int q) {
               move(m().stage(me(), k) + q * m().share(), from + first(k, q) * item(), size(k, q) * item());
             });
           },
           [&](int64_t k) {
             std::vector<const void*> sources(static_cast<size_t>(ranks()));
             for (int q = 0; q < ranks(); ++q)
               sources[static_cast<size_t>(q)] =
                   q == me() ? from + first(k, me()) * item() : m().stage(q, k) + me() * m().share();
             void* targets[] = {m().result(me(), k), is_written ? to + first(k, me()) * item() : nullptr};
             fold(call.reduction, ranks(), sources.data(), is_written ? 2 : 1, targets, size(k, me()));
           },
           [&](int64_t k) {
             if (is_written)
               each_other([&](int q) { move(to + first(k, q) * item(), m().result(q, k), size(k, q) * item()); });
           });
}

void Run::reduce_scatter() const {
  const int64_t n = count(), all = bytes() * ranks();
  void* target[] = {to};
  if (all <= Meeting::kSmall) {
    begin(0, 0, [&] { move(m().small(me()), from, all); });
    return fold(call.reduction, ranks(), all_small(me() * bytes()).data(), 1, target, n);
  }
  begin(all, 0, [] {});
  if (all_share(&CollectiveCall::from)) {
    fold(call.reduction, ranks(), all_from(me() * bytes()).data(), 1, target, n);
    return end();
  }
  const int64_t block = m().share() / item();
  const auto size = [&](int64_t k) { return std::min(block, n - k * block); };
  const auto own = [&](int64_t k, int q) { return from + (q * n + k * block) * item(); };
  pipeline((n + block - 1) / block,
           [&](int64_t k) {
             each_other([&](int q) { move(m().stage(me(), k) + q * m().share(), own(k, q), size(k) * item()); });
           },
           [&](int64_t k) {
             std::vector<const void*> sources(static_cast<size_t>(ranks()));
             for (int q = 0; q < ranks(); ++q)
               sources[static_cast<size_t>(q)] = q == me() ? own(k, q) : m().stage(q, k) + me() * m().share();
             void* there[] = {to + k * block * item()};
             fold(call.reduction, ranks(), sources.data(), 1, there, size(k));
           },
           [](int64_t) {});
}

void Run::all_gather() const {
  if (bytes() <= Meeting::kSmall) {
    begin(0, 0, [&] { move(m().small(me()), from, bytes()); });
    for (int q = 0; q < ranks(); ++q) move(to + q * bytes(), m().small(q), bytes());
    return;
  }
  begin(bytes(), bytes() * ranks(), [] {});
  if (all_share(&CollectiveCall::from)) {
    move(to + me() * bytes(), from, bytes());
    each_other([&](int q) { move(to + q * bytes(), of_rank(q, &CollectiveCall::from), bytes()); });
    return end();
  }
  if (all_share(&CollectiveCall::to)) {
    move(to + me() * bytes(), from, bytes());
    each_other([&](int q) { move(of_rank(q, &CollectiveCall::to) + me() * bytes(), from, bytes()); });
    return end();
  }
  const int64_t block = m().share() * ranks();
  const auto size = [&](int64_t k) { return std::min(block, bytes() - k * block); };
  pipeline((bytes() + block - 1) / block,
           [&](int64_t k) {
             move(m().stage(me(), k), from + k * block, size(k));
             move(to + me() * bytes() + k * block, from + k * block, size(k));
           },
           [&](int64_t k) { each_other([&](int q) { move(to + q * bytes() + k * block, m().stage(q, k), size(k)); }); },
           [](int64_t) {});
}

void Run::broadcast() const {
  const bool is_root = call.root == me();
  if (bytes() <= Meeting::kSmall) {
    begin(0, 0, [&] {
      if (is_root) move(m().small(me()), from, bytes());
    });
    return move(to, m().small(call.root), bytes());
  }
  begin(is_root ? bytes() : 0, 0, [] {});
  if (m().call_of(call.root).from.descriptor >= 0) {
    move(to, of_rank(call.root, &CollectiveCall::from), bytes());
    return end();
  }
  const int64_t block = m().share() * ranks();
  const auto size = [&](int64_t k) { return std::min(block, bytes() - k * block); };
  pipeline((bytes() + block - 1) / block,
           [&](int64_t k) {
             if (is_root) move(m().stage(me(), k), from + k * block, size(k));
           },
           [&](int64_t k) { move(to + k * block, is_root ? from + k * block : m().stage(call.root, k), size(k)); },
           [](int64_t) {});
}

struct Exchange {
  Run run;
  std::vector<char*> to;
  std::vector<const char*> from;
  std::vector<uint64_t> counts;  // that are given, then those that come

  void operator()() const {
    const Meeting& m = run.m();
    const int ranks = run.ranks(), me = run.me();
    run.begin(0, 0, [&] { std::memcpy(m.counts(me), counts.data(), counts.size() * sizeof counts[0]); });
    uint64_t most = 0;
    for (int p = 0; p < ranks; ++p)
      for (int q = 0; q < ranks; ++q) {
        const uint64_t given = m.counts(p)[q], awaited = m.counts(q)[ranks + p];
        if (given != awaited)
          throw CollectiveError{MACA_INVALID, "rank " + std::to_string(p) + " gives " + std::to_string(given) +
                                                  " elements to rank " + std::to_string(q) + ", which awaits " +
                                                  std::to_string(awaited)};
        if (p != q) most = std::max(most, given);
      }
    const int64_t item = run.item(), block = m.share() / item * item;
    const auto given = [&](int q) { return static_cast<int64_t>(counts[static_cast<size_t>(q)]) * item; };
    const auto awaited = [&](int q) { return static_cast<int64_t>(counts[static_cast<size_t>(ranks + q)]) * item; };
    move(to[static_cast<size_t>(me)], from[static_cast<size_t>(me)], given(me));
    run.pipeline((static_cast<int64_t>(most) * item + block - 1) / block,
                 [&](int64_t k) {
                   run.each_other([&](int q) {
                     move(m.stage(me, k) + q * m.share(), from[static_cast<size_t>(q)] + k * block,
                          std::min(block, given(q) - k * block));
                   });
                 },
                 [&](int64_t k) {
                   run.each_other([&](int q) {
                     move(to[static_cast<size_t>(q)] + k * block, m.stage(q, k) + me * m.share(),
                          std::min(block, awaited(q) - k * block));
                   });
                 },
                 [](int64_t) {});
  }
};

// What a slot's arguments say, or why it is declined.
maca_status read(Kind kind, maca_comm* comm, const maca_collective* call, void* to, const void* from, Run* run,
                 maca_reason* reason) {
  const Dtype dtype = dtype_of(call->dtype);
  *run = {comm, *call, kind, static_cast<char*>(untagged(to)), static_cast<const char*>(untagged(from)), nullptr};
  if (kind == kAllReduce || kind == kReduce || kind == kReduceScatter) {
    run->fold = fold_of(dtype, call->reduction);
    if (!run->fold)
      return tell(reason, {MACA_DECLINED, "no reduction " + std::to_string(call->reduction) + " of these elements"});
  } else if (item_size(dtype) == 0) {
    return tell(reason, {MACA_DECLINED, "elements of less than a byte"});
  }
  if (call->root < 0 || call->root >= comm->meeting.ranks())
    return tell(reason, {MACA_INVALID, "no root " + std::to_string(call->root)});
  return MACA_OK;
}

}  // namespace

maca_status comm_id(maca_device*, maca_comm_id* id, maca_reason* reason) {
  return guarded(reason, [&] { Meeting::make_id(id); });
}

maca_status comm_create(maca_device*, const maca_comm_request* request, maca_comm** comm, maca_reason* reason) {
  return guarded(reason, [&] { *comm = new maca_comm(*request); });
}

maca_status comm_destroy(maca_device*, maca_comm* comm) {
  if (comm->generation == fork_generation()) delete comm;  // else it is the parent's
  return MACA_OK;
}

maca_status comm_abort(maca_device*, maca_comm* comm) {
  if (comm->generation == fork_generation()) comm->meeting.abort();
  return MACA_OK;
}

maca_status comm_error(maca_device*, maca_comm* comm, maca_reason* reason) {
  std::lock_guard lock(comm->error_mutex);
  return tell(reason, comm->error);
}

#define MACA_COLLECTIVE_OF(NAME, KIND, CALL)                                            \
  MACA_COLLECTIVE(NAME) {                                                               \
    Run run;                                                                            \
    if (const maca_status s = read(KIND, comm, call, to, from, &run, reason)) return s; \
    return submit(comm, stream, reason, [run] { run.CALL; });                           \
  }
MACA_COLLECTIVE_OF(comm_all_reduce, kAllReduce, reduce_to(true))
MACA_COLLECTIVE_OF(comm_reduce, kReduce, reduce_to(run.call.root == run.me()))
MACA_COLLECTIVE_OF(comm_broadcast, kBroadcast, broadcast())
MACA_COLLECTIVE_OF(comm_all_gather, kAllGather, all_gather())
MACA_COLLECTIVE_OF(comm_reduce_scatter, kReduceScatter, reduce_scatter())

maca_status comm_all_to_all(maca_device*, maca_comm* comm, const maca_collective* call, void* const* to,
                            const uint64_t* to_counts, const void* const* from, const uint64_t* from_counts,
                            maca_stream* stream, maca_reason* reason) {
  Exchange exchange;
  if (const maca_status s = read(kAllToAll, comm, call, nullptr, nullptr, &exchange.run, reason)) return s;
  const int ranks = comm->meeting.ranks();
  for (int q = 0; q < ranks; ++q) {
    exchange.to.push_back(static_cast<char*>(untagged(to[q])));
    exchange.from.push_back(static_cast<const char*>(untagged(from[q])));
  }
  exchange.counts.assign(from_counts, from_counts + ranks);
  exchange.counts.insert(exchange.counts.end(), to_counts, to_counts + ranks);
  return submit(comm, stream, reason, exchange);
}

maca_status comm_allocate(maca_device*, uint64_t bytes, void** address) {
  const maca_status status = shared_allocate(bytes, address);
  if (status == MACA_OK) *address = tagged(*address);
  return status;
}

maca_status comm_free(maca_device*, void* address) { return shared_free(untagged(address)) ? MACA_OK : MACA_INVALID; }

}  // namespace maca
