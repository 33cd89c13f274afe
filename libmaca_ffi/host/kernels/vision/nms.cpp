// Non-maximum suppression: of boxes that overlap by more than a share the one with the highest score.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernel.h"

namespace maca::MACA_ISA {
namespace {

// boxes [N, 4], scores [N] -> kept [N] int64, of which the first `count` [1] int64 are written.
std::unique_ptr<Plan> nms(const Request& r) {
  const Operand boxes = r.in(0), scores = r.in(1), kept = r.out(0), count = r.out(1);
  if (boxes.rank() != 2 || boxes.sizes[1] != 4 || scores.rank() != 1 || scores.sizes[0] != boxes.sizes[0])
    throw Invalid("boxes are [N, 4], scores [N]");
  if (scores.dtype != boxes.dtype) throw Invalid("dets should have the same type as scores");
  if (kept.dtype != Dtype::I64 || count.dtype != Dtype::I64 || kept.numel() < boxes.sizes[0] || !kept.contiguous())
    throw Invalid("results are int64");
  const double threshold = r.number("iou_threshold");
  const int64_t n = boxes.sizes[0];
  std::unique_ptr<Plan> plan;
  const bool known = with_real(compute_of(boxes.dtype), [&](auto tag) {
    using T = decltype(tag);
    if (!is_native(compute_for<T>, boxes.dtype)) throw Declined("nms of float32 and float64");
    plan = make_plan(static_cast<uint64_t>(n) * static_cast<uint64_t>(n), [=](const Launch& launch) {
      const auto size = static_cast<size_t>(n);
      const T *box = launch.data<const T>(boxes), *score = launch.data<const T>(scores);
      std::vector<int64_t> order(size);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const T x = score[a * scores.strides[0]], y = score[b * scores.strides[0]];
        return x > y || (x != x && y == y);  // NaN is the largest, as for torch.sort
      });
      // in the order of their scores, that the inner loop reads rows of memory
      std::vector<T> x1(size), y1(size), x2(size), y2(size), area(size);
      std::vector<uint8_t> suppressed(size, 0);
      for (size_t i = 0; i < size; ++i) {
        const T* row = box + order[i] * boxes.strides[0];
        x1[i] = row[0], y1[i] = row[boxes.strides[1]], x2[i] = row[2 * boxes.strides[1]];
        y2[i] = row[3 * boxes.strides[1]];
        area[i] = (x2[i] - x1[i]) * (y2[i] - y1[i]);
      }
      int64_t* to = launch.data<int64_t>(kept);
      int64_t found = 0;
      for (size_t i = 0; i < size; ++i) {
        if (suppressed[i]) continue;
        to[found++] = order[i];
        const T left = x1[i], top = y1[i], right = x2[i], bottom = y2[i], own = area[i];
        for (size_t j = i + 1; j < size; ++j) {
          const T w = std::max(T(0), std::min(right, x2[j]) - std::max(left, x1[j]));
          const T h = std::max(T(0), std::min(bottom, y2[j]) - std::max(top, y1[j]));
          const T shared = w * h;
          suppressed[j] |= static_cast<double>(shared / (own + area[j] - shared)) > threshold;
        }
      }
      *launch.data<int64_t>(count) = found;
    });
  });
  if (!known) throw Declined("nms of floating numbers only");
  return plan;
}

MACA_KERNEL("vision_nms", nms);

}  // namespace
}  // namespace maca::MACA_ISA
