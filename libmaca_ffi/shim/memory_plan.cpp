#include "memory_plan.h"

#include <algorithm>
#include <map>

namespace maca_shim {
namespace {

constexpr int64_t kAlignment = 512;
constexpr int64_t kSmall = 1 << 14;  // bytes: to touch them takes a microsecond, to allocate them a tenth

int64_t rounded(int64_t bytes) { return std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment); }

// Values that lie in one place, one after another.
struct Chain {
  int64_t bytes, born, died;
  int32_t result = -1;
  int64_t offset = 0;
};

// The largest first, each at the lowest place that is free as long as it lives. The bytes that this takes.
int64_t share(std::vector<Chain*> chains) {
  std::stable_sort(chains.begin(), chains.end(), [](auto* a, auto* b) { return a->bytes > b->bytes; });
  std::vector<const Chain*> placed;  // by their offsets
  int64_t total = 0;
  for (Chain* one : chains) {
    for (const Chain* other : placed) {
      if (other->died <= one->born || one->died <= other->born) continue;
      if (other->offset >= one->offset + rounded(one->bytes)) break;
      one->offset = std::max(one->offset, other->offset + rounded(other->bytes));
    }
    total = std::max(total, one->offset + rounded(one->bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), one,
                                   [](const Chain* a, const Chain* b) { return a->offset < b->offset; }),
                  one);
  }
  return total;
}

}  // namespace

MemoryPlan::MemoryPlan(const std::vector<Value>& values, const std::vector<std::pair<int32_t, int32_t>>& heirs) {
  const auto of = [&](int32_t i) -> const Value& { return values[static_cast<size_t>(i)]; };
  std::vector<int32_t> from(values.size(), -1);
  std::vector<bool> is_taken(values.size());
  for (const auto& [first, second] : heirs) {
    const Value &a = of(first), &b = of(second);
    const bool fits = a.born >= 0 && !a.is_result && a.bytes == b.bytes && a.died == b.born + 1 && a.born < b.born;
    if (!fits || is_taken[static_cast<size_t>(first)] || from[static_cast<size_t>(second)] >= 0) continue;
    is_taken[static_cast<size_t>(first)] = true;
    from[static_cast<size_t>(second)] = first;
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].born >= 0 || values[i].is_result) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a].born < values[b].born; });
  std::vector<Chain> chains;
  std::vector<int32_t> chain_of(values.size(), -1);
  for (const size_t i : order) {  // who takes a value's memory is born later
    const Value& v = values[i];
    const int32_t before = from[i];
    if (before < 0) {
      chain_of[i] = static_cast<int32_t>(chains.size());
      chains.push_back({v.bytes, v.born, v.died});
    } else {
      chain_of[i] = chain_of[static_cast<size_t>(before)];
    }
    Chain& chain = chains[static_cast<size_t>(chain_of[i])];
    chain.died = v.died;
    if (v.is_result) chain.result = static_cast<int32_t>(i);
  }
  std::vector<Chain*> small;
  std::vector<int32_t> piece_of(chains.size(), -1);
  for (size_t i = 0; i < chains.size(); ++i) {
    Chain& chain = chains[i];
    if (chain.result < 0 && chain.bytes <= kSmall) {
      small.push_back(&chain);
      continue;
    }
    piece_of[i] = static_cast<int32_t>(pieces.size());
    pieces.push_back({chain.bytes, chain.born, chain.died, chain.result});
  }
  if (!small.empty()) {
    Piece shared{share(small), small[0]->born, small[0]->died, -1};
    for (const Chain* chain : small) {
      shared.born = std::min(shared.born, chain->born);
      shared.died = std::max(shared.died, chain->died);
    }
    for (int32_t& piece : piece_of)
      if (piece < 0) piece = static_cast<int32_t>(pieces.size());
    pieces.push_back(shared);
  }
  for (const int32_t chain : chain_of) {
    if (chain < 0)
      homes.push_back({-1, 0});
    else
      homes.push_back({piece_of[static_cast<size_t>(chain)], chains[static_cast<size_t>(chain)].offset});
  }
  std::map<int64_t, int64_t> change;  // by step
  for (const Piece& piece : pieces) {
    if (piece.result >= 0) continue;
    change[piece.born] += piece.bytes;
    change[piece.died] -= piece.bytes;
  }
  int64_t live = 0;
  for (const auto& [step, bytes] : change) scratch_bytes = std::max(scratch_bytes, live += bytes);
}

}  // namespace maca_shim
