// What the products that a convolution becomes share: threads with scratch memory of their own, whose results have to
// be finite.
#pragma once
#include "kernels/matmul/tiles.h"
#include "scratch.h"
#include "winograd.h"

namespace maca::MACA_ISA {

using matmul::Member;
using matmul::Part;
using winograd::Finite;

// f(member, its scratch) on as many threads as so many multiplications repay, and as there are pieces. Do all say that
// what they computed is finite?
template <class F>
bool finite_on_members(int64_t multiplications, int64_t pieces, const Scratch& scratch, void* workspace, F&& f) {
  std::atomic<bool> finite{true};
  matmul::on_members(multiplications, pieces, [&](const Member& member) {
    std::unique_ptr<char[]> heap;
    if (!f(member, reinterpret_cast<float*>(scratch.of_thread(workspace, heap))))
      finite.store(false, std::memory_order_relaxed);
  });
  return finite;
}

}  // namespace maca::MACA_ISA
