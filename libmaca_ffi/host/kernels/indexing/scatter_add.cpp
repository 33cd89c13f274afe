// scatter_add, and the products of scatter_reduce.
//
// Threads take lines. Where these are few, each is cut in pieces that have an image of the target each; how many is
// said by the sizes: the same bits whatever the thread count. Where images would be larger than what goes there,
// threads take parts of the target.
#include "accumulate.h"
#include "lines.h"
#include "reductions.h"
#include "sums.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kLinesForThreads = 8, kMostImages = 16;

// What leaves every number as it is, a negative zero too. (Of complex numbers no product does: inf * 0i is NaN.)
template <Reduce R, class A> A neutral() {
  if constexpr (std::is_same_v<A, c64> || std::is_same_v<A, c128>)
    return A(-0.0, -0.0);
  else if constexpr (std::is_floating_point_v<A>)
    return R == Reduce::PROD ? A(1) : A(-0.0);
  else
    return A(R == Reduce::PROD ? 1 : 0);
}

// Into how many images the terms go; the first is the target.
int64_t images_of(const Operand& target, const Lines& lines, Reduce reduce) {
  const int64_t places = target.numel();
  const bool complex = target.dtype == Dtype::C64 || target.dtype == Dtype::C128;
  if (places == 0 || places != span_of(target) || (reduce == Reduce::PROD && complex)) return 1;
  return std::clamp<int64_t>(lines.numel() / (4 * places), 1, kMostImages);
}

template <Reduce R> std::unique_ptr<Plan> accumulated(const Request& r) {
  const Operand target = target_of(r), index = r.in(1), source = r.in(2);
  expect_dtype(source, target.dtype, "the source");
  const Lines lines(index, source, target, r.integer("dim"));
  const Sums sums(&r.in(0), target);
  const uint64_t sums_end = (sums.workspace_bytes() + 15) / 16 * 16;
  const bool by_lines = lines.count() >= kLinesForThreads || lines.numel() < kGrain;
  // in the order of the index where that is asked for, as PyTorch's
  const int64_t images = by_lines || r.deterministic() ? 1 : images_of(target, lines, R), places = span_of(target);
  if (!by_lines && images == 1) return scattered_by_parts(r, R);
  std::unique_ptr<Plan> plan;
  uint64_t image_bytes = 0;
  with_addable(target.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    image_bytes = static_cast<uint64_t>((images - 1) * places) * sizeof(A);
    plan = make_plan(sums.work() + static_cast<uint64_t>(lines.numel()) * 4, [=](const Launch& launch) {
      ScalarBox box;
      const T* from = data_or_scalar<T>(launch, source, target.dtype, box);
      sums.run<T>(launch, launch.workspace, [&](A* to) {
        A* others = reinterpret_cast<A*>(static_cast<char*>(launch.workspace) + sums_end);
        const int64_t extent = lines.extent(), step = lines.target_step();
        with_line_index(index, [&](auto index_tag) {
          const auto* indices = launch.data<const decltype(index_tag)>(index);
          const auto into = [&, extent, step](A* image) {
            return [&, image, extent, step](int64_t i, int64_t d, int64_t base) {
              const int64_t at = indices[i];
              if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(extent)) throw line_error(at, lines.dim(), extent);
              A& place = image[base + at * step];
              place = combined<R>(place, convert<A>(from[d]));
            };
          };
          if (images == 1) return lines.each(true, into(to));
          parallel_for(images, 1, [&](int64_t first, int64_t last) {
            for (int64_t k = first; k < last; ++k) {
              A* image = k == 0 ? to : others + (k - 1) * places;
              if (k > 0) std::fill_n(image, places, neutral<R, A>());
              lines.piece(k, images, into(image));
            }
          });
          parallel_for(places, kGrain, [&](int64_t first, int64_t last) {
            for (int64_t k = 1; k < images; ++k) {
              const A* image = others + (k - 1) * places;
              for (int64_t i = first; i < last; ++i) to[i] = combined<R>(to[i], image[i]);
            }
          });
        });
      });
    });
  });
  with_line_index(index, [](auto) {});  // refuses other dtypes now and not at the launch
  plan->workspace_bytes = sums_end + image_bytes;
  return plan;
}

std::unique_ptr<Plan> scatter_add(const Request& r) { return accumulated<Reduce::SUM>(r); }

}  // namespace

std::unique_ptr<Plan> scatter_accumulated(const Request& r, Reduce reduce) {
  return reduce == Reduce::PROD ? accumulated<Reduce::PROD>(r) : accumulated<Reduce::SUM>(r);
}

namespace {
MACA_KERNEL("scatter_add", scatter_add);
}
}  // namespace maca::MACA_ISA
