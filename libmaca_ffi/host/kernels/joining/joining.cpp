// cat and stack: every input is copied into its slice of the result, converted where the dtypes differ.
#include "kernels/indexing/index.h"
#include "conversion.h"

namespace maca::MACA_ISA {
namespace {

struct Piece {
  Operand from;
  Nest<2> nest;  // operand 0: the result
  int64_t offset;
};

class JoinPlan final : public Plan {
 public:
  JoinPlan(std::vector<Piece> pieces, const Operand& out) : out_(out) {
    for (Piece& piece : pieces) {
      work += static_cast<uint64_t>(piece.nest.numel());
      converters_.push_back(
          piece.from.dtype == out.dtype ? nullptr : std::make_unique<RowConverter>(piece.from.dtype, out.dtype));
    }
    pieces_ = std::move(pieces);
  }

  void run(const Launch& launch) const override {
    with_item_size(item_size(out_.dtype), [&](auto tag) {
      using T = decltype(tag);
      T* to = launch.data<T>(out_);
      // Small joins and joins of many inputs: a thread takes whole inputs. Else each input is split.
      if (pieces_.size() < 2 * static_cast<size_t>(ThreadPool::instance().threads())) {
        for (size_t i = 0; i < pieces_.size(); ++i) {
          const Nest<2>& nest = pieces_[i].nest;
          parallel_for(nest.numel(), kGrain, [&](int64_t begin, int64_t end) { copy<T>(launch, i, to, begin, end); });
        }
      } else {
        const int64_t count = static_cast<int64_t>(pieces_.size());
        const int64_t each = std::max<int64_t>(1, static_cast<int64_t>(work) / count);
        parallel_for(count, std::max<int64_t>(1, kGrain / each), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            copy<T>(launch, static_cast<size_t>(i), to, 0, pieces_[static_cast<size_t>(i)].nest.numel());
        });
      }
    });
  }

 private:
  template <class T> void copy(const Launch& launch, size_t i, T* to, int64_t begin, int64_t end) const {
    const Piece& piece = pieces_[i];
    const auto [to_step, from_step] = piece.nest.inner().stride;
    ScalarBox box;
    const char* from = data_or_scalar<char>(launch, piece.from, piece.from.dtype, box);
    const int64_t size = item_size(piece.from.dtype);
    to += piece.offset;
    if (const RowConverter* convert = converters_[i].get()) {
      piece.nest.runs(begin, end, [&, ts = to_step, fs = from_step](const auto& o, int64_t n) {
        (*convert)(from + o[1] * size, fs, to + o[0], ts, n);
      });
      return;
    }
    const T* source = reinterpret_cast<const T*>(from);
    piece.nest.runs(begin, end, [&, ts = to_step, fs = from_step](const auto& o, int64_t n) {
      copy_row(to + o[0], ts, source + o[1], fs, n);
    });
  }

  Operand out_;
  std::vector<Piece> pieces_;
  std::vector<std::unique_ptr<RowConverter>> converters_;
};

std::unique_ptr<Plan> cat(const Request& r) {
  const Operand out = r.out();
  const auto list = r.in_list(0);
  // the "empty tensor" of old, whatever the rank of the others; such alone may be joined along any dimension
  const auto is_old_empty = [](const Operand& o) { return o.rank() == 1 && o.sizes[0] == 0; };
  std::vector<Piece> pieces;
  if (is_old_empty(out) && std::all_of(list.begin(), list.end(), is_old_empty))
    return std::make_unique<JoinPlan>(std::move(pieces), out);
  const size_t dim = static_cast<size_t>(wrap_dim(r.integer("dim", 0), out.rank()));
  int64_t position = 0;
  for (const Operand& from : list) {
    if (is_old_empty(from)) continue;
    if (from.rank() != out.rank()) throw Invalid("cat(): tensors differ in rank");
    Dims sizes = out.sizes;
    sizes[dim] = from.sizes[dim];
    if (sizes != from.sizes) throw Invalid("cat(): sizes differ outside of the joined dimension");
    const int64_t offset = position * out.strides[dim];
    position += sizes[dim];
    if (position > out.sizes[dim]) throw Invalid("cat(): the result is too small");
    if (from.numel() > 0) pieces.push_back({from, Nest<2>(sizes, {out.strides, from.strides}), offset});
  }
  if (out.numel() > 0 && position != out.sizes[dim]) throw Invalid("cat(): the inputs do not fill the result");
  return std::make_unique<JoinPlan>(std::move(pieces), out);
}

std::unique_ptr<Plan> stack(const Request& r) {
  const Operand out = r.out();
  const size_t dim = static_cast<size_t>(wrap_dim(r.integer("dim", 0), out.rank()));
  Dims sizes = out.sizes, strides = out.strides;
  sizes.erase(sizes.begin() + static_cast<int64_t>(dim));
  strides.erase(strides.begin() + static_cast<int64_t>(dim));
  const auto list = r.in_list(0);
  if (static_cast<int64_t>(list.size()) != out.sizes[dim]) throw Invalid("stack(): the inputs do not fill the result");
  std::vector<Piece> pieces;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].sizes != sizes) throw Invalid("stack(): tensors differ in size");
    if (list[i].numel() == 0) continue;
    pieces.push_back({list[i], Nest<2>(sizes, {strides, list[i].strides}), static_cast<int64_t>(i) * out.strides[dim]});
  }
  return std::make_unique<JoinPlan>(std::move(pieces), out);
}

// block_diag: zeros, with every input on its block of the diagonal.
std::unique_ptr<Plan> block_diag(const Request& r) {
  const Operand out = r.out();
  if (out.rank() != 2) throw Invalid("block_diag() gives a matrix");
  std::vector<Piece> pieces;
  int64_t row = 0, column = 0;
  for (Operand from : r.in_list(0)) {
    if (from.rank() > 2) throw Invalid("block_diag() takes matrices");
    while (from.rank() < 2) {
      from.sizes.insert(from.sizes.begin(), 1);
      from.strides.insert(from.strides.begin(), 0);
    }
    if (row + from.sizes[0] > out.sizes[0] || column + from.sizes[1] > out.sizes[1])
      throw Invalid("block_diag(): the result is too small");
    if (from.numel() > 0)
      pieces.push_back(
          {from, Nest<2>(from.sizes, {out.strides, from.strides}), row * out.strides[0] + column * out.strides[1]});
    row += from.sizes[0];
    column += from.sizes[1];
  }
  const Nest<1> all(out.sizes, {out.strides});
  std::shared_ptr<const Plan> join = std::make_unique<JoinPlan>(std::move(pieces), out);
  return make_plan(static_cast<uint64_t>(all.numel()) * 2, [=](const Launch& launch) {
    with_item_size(item_size(out.dtype),
                   [&](auto tag) { fill_nest(all, launch.data<decltype(tag)>(out), decltype(tag){}); });
    join->run(launch);
  });
}

MACA_KERNEL("cat", cat);
MACA_KERNEL("stack", stack);
MACA_KERNEL("block_diag", block_diag);

}  // namespace
}  // namespace maca::MACA_ISA
