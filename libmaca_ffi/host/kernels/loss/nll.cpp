// nll_loss and nll_loss2d, forward and backward: one class index a position.
#include "kernels/reduction/reduction.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kChunk = 4096;  // positions of one partial sum: fixed, whatever the threads
enum Reduce { kNone = 0, kMean = 1, kSum = 2 };

struct Nll {
  Operand input, target, weight, grad, total, out;  // out: the loss, or the gradient of the input
  int64_t classes = 1, step = 0, out_step = 0;      // the class dimension of the input, and of its gradient
  int64_t weight_step = 1;
  int64_t ignored = -100;
  int reduce = kMean;
  // positions: input, target, and backward: gradient of the input, gradient of the loss; forward: the loss
  Nest<4> nest;
  Compute compute = Compute::F32;
};

Nll geometry(const Request& q, bool backward) {
  Nll s;
  const int first = backward ? 1 : 0;
  s.input = q.in(first);
  s.target = q.in(first + 1);
  s.weight = q.in(first + 2);
  if (backward) {
    s.grad = q.in(0);
    s.total = q.in(4);
  } else {
    s.total = q.out(1);
  }
  s.out = q.out(0);
  s.reduce = static_cast<int>(q.integer("reduction"));
  s.ignored = q.integer("ignore_index");
  s.compute = accumulation_of(s.input.dtype);
  if (s.compute != Compute::F32 && s.compute != Compute::F64)
    throw Declined(std::string("nll_loss of ") + dtype_name(s.input.dtype));
  if (s.target.dtype != Dtype::I64 && s.target.dtype != Dtype::U8)
    throw Declined(std::string("targets of type ") + dtype_name(s.target.dtype));
  const size_t rank = s.input.sizes.size();
  if (rank == 0 || s.target.sizes.size() + 1 < rank) throw Invalid("nll_loss: input and target do not match");
  const size_t at_class = rank == 1 ? 0 : 1;
  s.classes = s.input.sizes[at_class];
  s.step = s.input.strides[at_class];
  if (backward) {
    if (s.out.sizes != s.input.sizes) throw Invalid("the gradient has another shape than the input");
    s.out_step = s.out.strides[at_class];
  }
  if (s.weight.present()) {
    if (s.weight.numel() != s.classes) throw Invalid("weight has not one element a class");
    s.weight_step = s.weight.rank() ? s.weight.strides[0] : 0;
  }
  const auto along = [&](const Operand& o, size_t d) {  // strides of target-shaped operands; 0 for a number
    return o.sizes.size() + 1 == rank && d < o.strides.size() ? o.strides[d] : 0;
  };
  for (size_t d = 0, t = 0; d < rank; ++d) {
    if (d == at_class) continue;
    if (s.target.sizes.size() + 1 == rank && s.target.sizes[t] != s.input.sizes[d])
      throw Invalid("nll_loss: input and target do not match");
    s.nest.add(s.input.sizes[d], {s.input.strides[d], along(s.target, t),
                                  backward            ? s.out.strides[d]
                                  : s.reduce == kNone ? along(s.out, t)
                                                      : 0,
                                  backward && s.reduce == kNone ? along(s.grad, t) : 0});
    ++t;
  }
  return s;
}

template <class C> C value(const Operand& o, const void* data, int64_t offset) {
  C v{};
  load_tile(compute_for<C>, &v, o.dtype, at(data, o.dtype, offset), 1, 1);
  return v;
}

// Calls f(offsets, class) for positions [begin, end) that count, g(offsets) for ignored ones.
template <class F, class G> void positions(const Nll& s, const Launch& l, int64_t begin, int64_t end, F&& f, G&& g) {
  const auto step = s.nest.inner().stride;
  int64_t targets[256];
  s.nest.runs(begin, end, [&](auto o, int64_t count) {
    for (int64_t i = 0; i < count; i += 256) {
      const int64_t some = std::min<int64_t>(256, count - i);
      load_tile(Compute::I64, targets, s.target.dtype, at(l.data(s.target), s.target.dtype, o[1]), step[1], some);
      for (int64_t j = 0; j < some; ++j) {
        const int64_t t = targets[j];
        if (t == s.ignored)
          g(o);
        else if (t < 0 || t >= s.classes)
          throw LaunchError(MACA_ERROR_INDEX, "Target " + std::to_string(t) + " is out of bounds.");
        else
          f(o, t);
        for (size_t k = 0; k < 4; ++k) o[k] += step[k];
      }
    }
  });
}

void forward(const Nll& s, const Launch& l) {
  const int64_t n = s.nest.numel(), chunks = (n + kChunk - 1) / kChunk;
  const void *x = l.data(s.input), *w = s.weight.present() ? l.data(s.weight) : nullptr;
  struct Partial {
    double loss = 0, weight = 0;
  };
  std::vector<Partial> partial(static_cast<size_t>(chunks));
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      Partial p;
      const auto store = [&](const auto& o, double loss) {
        store_tile(Compute::F64, &loss, s.out.dtype, at(l.data(s.out), s.out.dtype, o[2]), 1, 1);
      };
      positions(
          s, l, k * kChunk, std::min(n, (k + 1) * kChunk),
          [&](const auto& o, int64_t t) {
            const double factor = w ? value<double>(s.weight, w, t * s.weight_step) : 1.0;
            const double loss = -value<double>(s.input, x, o[0] + t * s.step) * factor;
            p.loss += loss;
            p.weight += factor;
            if (s.reduce == kNone) store(o, loss);
          },
          [&](const auto& o) {
            if (s.reduce == kNone) store(o, 0.0);
          });
      partial[static_cast<size_t>(k)] = p;
    }
  });
  Partial sum;
  for (const Partial& p : partial) {
    sum.loss += p.loss;
    sum.weight += p.weight;
  }
  if (s.reduce == kNone) {
    if (s.input.rank() > 1) sum.weight = 0;  // of one sample PyTorch's kernel tells its weight whatever is asked
  } else {
    if (s.reduce == kMean) sum.loss /= sum.weight;
    store_tile(Compute::F64, &sum.loss, s.out.dtype, l.data(s.out), 1, 1);
  }
  store_tile(Compute::F64, &sum.weight, s.total.dtype, l.data(s.total), 1, 1);
}

void backward(const Nll& s, const Launch& l) {
  void* dx = l.data(s.out);
  Nest<1> zeros;
  for (size_t d = 0; d < s.out.sizes.size(); ++d) zeros.add(s.out.sizes[d], {s.out.strides[d]});
  zeros.sort(0);
  parallel_for(zeros.numel(), 65536, [&](int64_t begin, int64_t end) {
    const int64_t step = zeros.inner().stride[0], size = item_size(s.out.dtype);
    zeros.runs(begin, end, [&](const auto& o, int64_t count) {
      char* to = at(dx, s.out.dtype, o[0]);
      if (step == 1)
        std::memset(to, 0, static_cast<size_t>(count * size));
      else
        for (int64_t i = 0; i < count; ++i) std::memset(to + i * step * size, 0, static_cast<size_t>(size));
    });
  });
  const void* w = s.weight.present() ? l.data(s.weight) : nullptr;
  const double total = s.reduce == kMean ? value<double>(s.total, l.data(s.total), 0) : 1.0;
  const double same = s.reduce == kNone ? 0.0 : value<double>(s.grad, l.data(s.grad), 0) / total;
  parallel_for(s.nest.numel(), kChunk, [&](int64_t begin, int64_t end) {
    positions(
        s, l, begin, end,
        [&](const auto& o, int64_t t) {
          const double g = s.reduce == kNone ? value<double>(s.grad, l.data(s.grad), o[3]) : same;
          const double d = -g * (w ? value<double>(s.weight, w, t * s.weight_step) : 1.0);
          store_tile(Compute::F64, &d, s.out.dtype, at(dx, s.out.dtype, o[2] + t * s.out_step), 1, 1);
        },
        [](const auto&) {});
  });
}

std::unique_ptr<Plan> nll(const Request& q) {
  const Nll s = geometry(q, false);
  return make_plan(static_cast<uint64_t>(s.nest.numel()) * 16, [s](const Launch& l) { forward(s, l); });
}
std::unique_ptr<Plan> nll_backward(const Request& q) {
  const Nll s = geometry(q, true);
  return make_plan(static_cast<uint64_t>(s.out.numel()) * 4, [s](const Launch& l) { backward(s, l); });
}
MACA_KERNEL("nll_loss_forward", nll);
MACA_KERNEL("nll_loss_backward", nll_backward);
MACA_KERNEL("nll_loss2d_forward", nll);
MACA_KERNEL("nll_loss2d_backward", nll_backward);

}  // namespace
}  // namespace maca::MACA_ISA
