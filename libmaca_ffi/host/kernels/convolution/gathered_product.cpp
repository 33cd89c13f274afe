// Convolutions of many channels with short chains: the windows' rows are multiplied by the weight in panels. They are
// read where the image has them, tap by tap, or laid out, a block of rows at a time ("im2col" that stays in the
// second-level cache), where results side by side are few or pixels have few channels. As of products, kChain terms at
// most meet in one accumulator; oneDNN's kernels for channels-last images keep one of all channels and taps.
//
// A result of a strided transposition meets only the taps of its phase, its place modulo the stride: every phase is a
// convolution of its own.
#include <vector>

#include "finite_members.h"

namespace maca::MACA_ISA {
namespace {

using convolution::Gathered;
using winograd::each_lane;

using Triple = std::array<int64_t, 3>;

// Sizes for a first-level cache of 48 KiB and a second-level one of 2 MiB, where they were measured (a Xeon with AMX):
// 120 rows of 512 laid out at once in the second-level cache were 5 % slower.
constexpr int64_t kSlice = 256;              // depth of the rows that are laid out at once, and of a panel
constexpr int64_t kRowsLaidOut = 2 * kRows;  // at once: with AVX-512 24 KiB beside the panel's 32
constexpr int64_t kRowsAtOnce = 10 * kRows;  // that a slice of the weight, brought to the second-level cache, serves
constexpr int64_t kWidth = 512;              // columns whose sums are kept
// From a row that is laid out to the next; a power of two apart they would meet in the same few lines of the cache.
constexpr int64_t kRowStep = kSlice + 16;

// Pixels of fewer channels are laid out: tap by tap each would bring sums to registers and back. So are those that lie
// whole pages apart, which would meet in the same lines of the first-level cache.
constexpr int64_t kFewestRead = 32, kPage = 4096;
constexpr int64_t kShortestRun = 12;  // results side by side, of which one block of rows or two are made

struct Tap {
  Triple shift;         // of the pixel that it meets
  int64_t weight;       // where its numbers lie
  int64_t first, last;  // results along the innermost dimension that meet a pixel
};

struct Phase {
  Triple first, count;  // its results: their first place and their number along each dimension
  std::vector<Tap> taps;
  int64_t packed;  // its weights of one group
  bool in_place;   // the rows are the image
};

class GatheredProduct final : public convolution::StencilProduct {
 public:
  explicit GatheredProduct(const Gathered& g)
      : g_(g),
        panels_((g.result_channels + kColumns - 1) / kColumns),
        width_(std::min(panels_, kWidth / kColumns)),
        step_(g.spread ? g.stride : Triple{1, 1, 1}),
        read_step_(g.spread ? Triple{1, 1, 1} : g.stride) {
    Triple phases{1, 1, 1};
    for (size_t d = 0; d < 3; ++d) phases[d] = std::min(step_[d], g.result[d]);
    each({}, phases, [&](const Triple& at) { add_phase(at); });
    const bool in_place = std::ranges::all_of(phases_, &Phase::in_place);
    const int64_t apart = g.groups * g.read_channels * read_step_[2] * int64_t{sizeof(float)};
    reads_rows_ = !in_place && g.read_channels >= kFewestRead && apart % kPage != 0;
    int64_t rows = 0;
    for (const Phase& p : phases_) {
      reads_rows_ = reads_rows_ && p.count[2] >= kShortestRun;
      rows = std::max(rows, std::min(kRowsAtOnce, this->rows(p)));
    }
    rows_ = in_place || reads_rows_ ? 0 : kRowsLaidOut * kRowStep;
    scratch_ = Scratch((rows_ + rows * width_ * kColumns) * 4);
  }

  uint64_t packed_bytes() const override { return static_cast<uint64_t>(g_.groups * group_) * 4; }
  uint64_t workspace_bytes() const override { return scratch_.workspace(); }

  void pack(const float* weight, float* packed) const override {
    parallel_for(g_.groups * panels_, std::max<int64_t>(1, 32768 * panels_ / std::max<int64_t>(1, group_)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i)
                     for (const Phase& p : phases_)
                       pack_panel(p, i % panels_, weight + i / panels_ * g_.weight_group,
                                  packed + i / panels_ * group_ + p.packed);
                 });
  }

  bool run(const float* image, const float* packed, const float* bias, float* result, void* workspace) const override {
    int64_t multiplications = 0, most = 1;
    for (const Phase& p : phases_) {
      multiplications += g_.groups * rows(p) * depth(p) * g_.result_channels;
      most = std::max(most, panels_ * ((rows(p) + kRows - 1) / kRows));
    }
    return finite_on_members(multiplications, most, scratch_, workspace, [&](const Member& member, float* scratch) {
      bool finite = true;
      for (int64_t group = 0; group < g_.groups; ++group)
        for (const Phase& p : phases_) {
          const Part part = member.part((rows(p) + kRows - 1) / kRows, panels_);
          const float* own = bias ? bias + group * g_.result_channels : nullptr;
          finite &= compute(p, part, image + group * g_.read_channels, packed + group * group_ + p.packed, own,
                            result + group * g_.result_channels, scratch);
        }
      return finite;
    });
  }

 private:
  int64_t depth(const Phase& p) const { return static_cast<int64_t>(p.taps.size()) * g_.read_channels; }
  int64_t rows(const Phase& p) const { return g_.batch * p.count[0] * p.count[1] * p.count[2]; }

  template <class F> static void each(const Triple& begin, const Triple& end, F&& f) {
    for (int64_t z = begin[0]; z < end[0]; ++z)
      for (int64_t y = begin[1]; y < end[1]; ++y)
        for (int64_t x = begin[2]; x < end[2]; ++x) f(Triple{z, y, x});
  }

  void add_phase(const Triple& first) {
    Phase p{first, {}, {}, group_, false};
    for (size_t d = 0; d < 3; ++d) p.count[d] = (g_.result[d] - first[d] + step_[d] - 1) / step_[d];
    each({}, g_.kernel, [&](const Triple& k) {
      Tap tap{};
      for (size_t d = 0; d < 3; ++d) {
        tap.shift[d] =
            g_.spread ? first[d] + g_.padding[d] - k[d] * g_.dilation[d] : k[d] * g_.dilation[d] - g_.padding[d];
        if (tap.shift[d] % step_[d] != 0) return;
        tap.shift[d] /= step_[d];
        tap.weight += k[d] * g_.weight_tap[d];
      }
      const int64_t stride = read_step_[2], room = g_.read[2] - tap.shift[2];
      tap.first = std::clamp<int64_t>((stride - 1 - tap.shift[2]) / stride, 0, p.count[2]);
      tap.last = std::clamp<int64_t>(room > 0 ? (room + stride - 1) / stride : 0, tap.first, p.count[2]);
      p.taps.push_back(tap);
    });
    p.in_place =
        p.taps.size() == 1 && p.taps[0].shift == Triple{} && read_step_ == Triple{1, 1, 1} && g_.read == p.count;
    group_ += depth(p) * panels_ * kColumns;
    phases_.push_back(std::move(p));
  }

  // f(slice's first, slice's depth)
  template <class F> void each_slice(const Phase& p, F&& f) const {
    for (int64_t deep = 0, all = depth(p); deep < all; deep += kSlice) f(deep, std::min(kSlice, all - deep));
  }
  // f(tap, its channels' begin and end, where they begin in the slice)
  template <class F> void each_tap(const Phase& p, int64_t deep, int64_t depth, F&& f) const {
    const int64_t channels = g_.read_channels;
    for (int64_t at = deep; at < deep + depth;) {
      const int64_t tap = at / channels, begin = at % channels, end = std::min(channels, begin + deep + depth - at);
      f(p.taps[static_cast<size_t>(tap)], begin, end, at - deep);
      at += end - begin;
    }
  }

  // [slice][panel][depth][kColumns], zeros beyond the channels
  void pack_panel(const Phase& p, int64_t panel, const float* weight, float* packed) const {
    weight += panel * kColumns * g_.weight_result;
    const int64_t width = std::min(kColumns, g_.result_channels - panel * kColumns);
    if (width == kColumns && taps_together()) return pack_taps_together(p, panel, weight, packed);
    each_slice(p, [&](int64_t deep, int64_t depth) {
      float* to = packed + (deep * panels_ + panel * depth) * kColumns;
      each_tap(p, deep, depth, [&](const Tap& tap, int64_t begin, int64_t end, int64_t at) {
        pack_tap(weight + tap.weight, begin, end, width, to + at * kColumns);
      });
    });
  }

  // Only the taps of a pair of channels lie side by side, as of contiguous weights.
  bool taps_together() const {
    const auto& k = g_.kernel;
    return g_.weight_tap == Triple{k[1] * k[2], k[2], 1} && g_.weight_read > 1 && g_.weight_result > 1;
  }

  void pack_taps_together(const Phase& p, int64_t panel, const float* weight, float* packed) const {
    const int64_t taps = g_.kernel[0] * g_.kernel[1] * g_.kernel[2], all = depth(p), channels = g_.read_channels;
    const int64_t last =  // of the group's numbers, beyond which nothing is read
        (g_.result_channels - 1 - panel * kColumns) * g_.weight_result + (channels - 1) * g_.weight_read + taps - 1;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t half = 0; half < kColumns; half += kLanes)
        for (int64_t t = 0; t < taps; t += kLanes) {
          Lanes square[kLanes] = {};
          for (int64_t i = 0; i < kLanes; ++i) {
            const int64_t from = (half + i) * g_.weight_result + c * g_.weight_read + t;
            if (from + kLanes - 1 <= last)
              square[i] = read<Lanes>(weight + from);
            else
              for (int64_t j = 0; j < std::min<int64_t>(kLanes, taps - t); ++j) square[i][j] = weight[from + j];
          }
          transpose(square);
          for (size_t i = 0; i < p.taps.size(); ++i) {
            const int64_t lane = p.taps[i].weight - t;
            if (lane < 0 || lane >= kLanes) continue;
            const int64_t k = static_cast<int64_t>(i) * channels + c, deep = k / kSlice * kSlice;
            float* slice = packed + (deep * panels_ + panel * std::min(kSlice, all - deep)) * kColumns;
            write(slice + (k - deep) * kColumns + half, square[lane]);
          }
        }
  }

  void pack_tap(const float* weight, int64_t begin, int64_t end, int64_t width, float* to) const {
    const bool whole = width == kColumns, squares = whole && g_.weight_read == 1;
    int64_t c = begin;
    for (; squares && c + kLanes <= end; c += kLanes)
      for (int64_t half = 0; half < kColumns; half += kLanes) {
        Lanes square[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) square[i] = read<Lanes>(weight + (half + i) * g_.weight_result + c);
        transpose(square);
        for (int64_t i = 0; i < kLanes; ++i) write(to + (c - begin + i) * kColumns + half, square[i]);
      }
    for (; c < end; ++c) {
      const float* from = weight + c * g_.weight_read;
      float* row = to + (c - begin) * kColumns;
      if (whole && g_.weight_result == 1) {
        for (int64_t half = 0; half < kColumns; half += kLanes) write(row + half, read<Lanes>(from + half));
      } else {
        for (int64_t j = 0; j < width; ++j) row[j] = from[j * g_.weight_result];
        std::fill(row + width, row + kColumns, 0.0f);
      }
    }
  }

  struct Place {
    int64_t image;
    Triple at;  // in the phase
  };
  Place place(const Phase& p, int64_t row) const {
    const auto& n = p.count;
    return {row / (n[2] * n[1] * n[0]), {row / (n[2] * n[1]) % n[0], row / n[2] % n[1], row % n[2]}};
  }

  // f(row, place) for the rows [begin, end)
  template <class F> void each_row(const Phase& p, int64_t begin, int64_t end, F&& f) const {
    Place at = place(p, begin);
    for (int64_t row = begin; row < end; ++row) {
      f(row - begin, at);
      if (++at.at[2] == p.count[2]) next_row(p, at);
    }
  }
  static void next_row(const Phase& p, Place& at) {
    at.at[2] = 0;
    if (++at.at[1] < p.count[1]) return;
    at.at[1] = 0;
    if (++at.at[0] < p.count[0]) return;
    at.at[0] = 0, ++at.image;
  }

  bool compute(const Phase& p, const Part& part, const float* image, const float* packed, const float* bias,
               float* result, float* scratch) const {
    const int64_t end = std::min(part.row_end * kRows, rows(p)), step = width_ * kColumns;
    float *laid_out = scratch, *sums = scratch + rows_;
    Finite finite;
    for (int64_t row = part.row * kRows, count; row < end; row += count) {
      count = std::min(rows_at_once(p, row), end - row);
      for (int64_t first = part.column; first < part.column_end; first += width_) {
        const int64_t last = std::min(first + width_, part.column_end);
        if (reads_rows_ || p.taps.empty()) std::fill_n(sums, count * step, 0.0f);
        each_slice(p, [&](int64_t deep, int64_t depth) {
          const float* slice = packed + deep * panels_ * kColumns;
          if (reads_rows_) return multiply_rows_of_image(p, row, count, deep, depth, image, slice, first, last, sums);
          for (int64_t i = 0; i < count; i += kRowsLaidOut)
            multiply(p, row + i, std::min(kRowsLaidOut, count - i), deep, depth, image, slice, first, last,
                     sums + i * step, laid_out);
        });
        finish(p, row, count, first * kColumns, std::min(last * kColumns, g_.result_channels), sums, bias, result,
               finite);
      }
    }
    return static_cast<bool>(finite);
  }

  // Rows [row, row + count) of the windows' columns [deep, deep + depth) times the panels [begin, end).
  void multiply(const Phase& p, int64_t row, int64_t count, int64_t deep, int64_t depth, const float* image,
                const float* slice, int64_t begin, int64_t end, float* sums, float* laid_out) const {
    const int64_t pixel = g_.groups * g_.read_channels, step = width_ * kColumns;
    if (!p.in_place) lay_out(p, row, count, deep, depth, image, laid_out);
    for (int64_t j = begin; j < end; ++j) {
      const float* panel = slice + j * depth * kColumns;
      Panels::each_row_block(count, [&](int64_t i, int64_t n) {
        const Sums to{sums + i * step + (j - begin) * kColumns, step, deep > 0, chain_of(this->depth(p))};
        if (p.in_place)
          multiply_panel(j, n, depth, Left{image + (row + i) * pixel + deep, pixel, 1}, panel, to);
        else
          multiply_panel(j, n, depth, DenseLeft<kRowStep>{laid_out + i * kRowStep}, panel, to);
      });
    }
  }

  // At most kRows rows times panel j, of which half may be beyond the result's channels.
  template <class L>
  void multiply_panel(int64_t j, int64_t rows, int64_t depth, const L& left, const float* panel, const Sums& to) const {
    if (g_.result_channels - j * kColumns <= kLanes)
      multiply_block<1>(rows, depth, left, panel, to);
    else
      multiply_block(rows, depth, left, panel, to);
  }

  // So many that what follows begins with a row of results, where that is shorter.
  int64_t rows_at_once(const Phase& p, int64_t row) const {
    const int64_t width = p.count[2];
    if (!reads_rows_) return kRowsAtOnce;
    if (width > kRowsAtOnce) return std::min(kRowsAtOnce, width - row % width);
    return kRowsAtOnce / width * width - row % width;
  }

  // As multiply(), of the pixels that each tap meets where they lie; those outside the image are left out.
  void multiply_rows_of_image(const Phase& p, int64_t row, int64_t count, int64_t deep, int64_t depth,
                              const float* image, const float* slice, int64_t begin, int64_t end, float* sums) const {
    const int64_t pixel = g_.groups * g_.read_channels, step = width_ * kColumns;
    each_tap(p, deep, depth, [&](const Tap& tap, int64_t channel, int64_t channel_end, int64_t offset) {
      for (int64_t j = begin; j < end; ++j) {
        const float* panel = slice + (j * depth + offset) * kColumns;
        each_run(p, tap, row, count, [&](int64_t at, int64_t, int64_t some, int64_t none, int64_t from) {
          Panels::each_row_block(none - some, [&](int64_t i, int64_t n) {
            const Left left{image + (from + i * read_step_[2]) * pixel + channel, pixel * read_step_[2], 1};
            const Sums to{sums + (at + some + i) * step + (j - begin) * kColumns, step, true, chain_of(this->depth(p))};
            multiply_panel(j, n, channel_end - channel, left, panel, to);
          });
        });
      }
    });
  }

  // f(row, length, some, none, from) for the runs of rows that lie side by side: those from `some` to `none` meet
  // pixels of the tap, the first of them pixel `from`.
  template <class F> void each_run(const Phase& p, const Tap& tap, int64_t first, int64_t count, F&& f) const {
    Place at = place(p, first);
    for (int64_t row = 0; row < count;) {
      const int64_t x = at.at[2], length = std::min(count - row, p.count[2] - x);
      int64_t from = at.image;
      bool inside = true;
      for (size_t d = 0; d < 2; ++d) {
        const int64_t i = at.at[d] * read_step_[d] + tap.shift[d];
        inside = inside && i >= 0 && i < g_.read[d];
        from = from * g_.read[d] + i;
      }
      const int64_t some = inside ? std::clamp(tap.first - x, int64_t{0}, length) : length;
      const int64_t none = inside ? std::clamp(tap.last - x, some, length) : length;
      f(row, length, some, none, from * g_.read[2] + (x + some) * read_step_[2] + tap.shift[2]);
      row += length;
      next_row(p, at);
    }
  }

  // Columns [deep, deep + depth) of the windows' rows, zeros where they leave the image.
  void lay_out(const Phase& p, int64_t first, int64_t count, int64_t deep, int64_t depth, const float* image,
               float* to) const {
    const int64_t pixel = g_.groups * g_.read_channels;
    each_tap(p, deep, depth, [&](const Tap& tap, int64_t begin, int64_t end, int64_t offset) {
      const int64_t channels = end - begin;
      each_run(p, tap, first, count, [&](int64_t row, int64_t length, int64_t some, int64_t none, int64_t from) {
        float* target = to + row * kRowStep + offset;
        for (int64_t i = 0; i < some; ++i) clear(channels, target + i * kRowStep);
        copy_pixels(none - some, channels, image + from * pixel + begin, pixel * read_step_[2],
                    target + some * kRowStep);
        for (int64_t i = none; i < length; ++i) clear(channels, target + i * kRowStep);
      });
    });
  }
  static void clear(int64_t channels, float* to) {
    each_lane(channels, [&](auto zero, int64_t c) { write(to + c, zero); });
  }
  void copy_pixels(int64_t count, int64_t channels, const float* from, int64_t from_step, float* to) const {
    for (int64_t i = 0; i < count; ++i, from += from_step, to += kRowStep)
      each_lane(channels, [&](auto zero, int64_t c) { write(to + c, read<decltype(zero)>(from + c)); });
  }

  // sums + bias to the result's channels [begin, end)
  void finish(const Phase& p, int64_t first, int64_t count, int64_t begin, int64_t end, const float* sums,
              const float* bias, float* result, Finite& finite) const {
    const int64_t channels = g_.groups * g_.result_channels;
    each_row(p, first, first + count, [&](int64_t row, const Place& at) {
      int64_t to = at.image;
      for (size_t d = 0; d < 3; ++d) to = to * g_.result[d] + p.first[d] + at.at[d] * step_[d];
      const float* from = sums + row * width_ * kColumns;
      float* pixel = result + to * channels + begin;
      each_lane(end - begin, [&](auto zero, int64_t c) {
        using L = decltype(zero);
        // at the end: rounded once, a bias that is larger than the products costs no more
        const L sum = bias ? read<L>(from + c) + read<L>(bias + begin + c) : read<L>(from + c);
        write(pixel + c, sum);
        finite.see(sum);
      });
    });
  }

  Gathered g_;
  int64_t panels_, width_;   // of all columns, of those whose sums are kept
  Triple step_, read_step_;  // from a result of a phase to the next, and between the pixels that they meet
  std::vector<Phase> phases_;
  bool reads_rows_ = false;  // runs of them are, tap by tap
  int64_t group_ = 0, rows_ = 0;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<convolution::StencilProduct> gathered_product(const Gathered& g) {
  return std::make_unique<GatheredProduct>(g);
}

}  // namespace maca::MACA_ISA
