// _fft_c2c, _fft_r2c, _fft_c2r: passes over one dimension after the other.
//
// A real line of even length goes as a complex one of half the length; of odd length, as complex with zero
// imaginary parts. Packing two lines into one would be faster for odd lengths, but lets a line's NaN, or its large
// numbers' rounding errors, into its neighbour.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "fft.h"
#include "lanes.h"
#include "pairs.h"

namespace maca::MACA_ISA::fft {
namespace {

constexpr int64_t kInCache = 4096;  // two buffers of this many vectors fill 1 MiB, half of a common L2
constexpr int64_t kCutShort = 512;  // shorter lines are not worth cutting to fill the lanes

enum class Kind { Complex, ToComplex, ToReal };

// Where one dimension's lines lie, in numbers of T.
struct Side {
  std::vector<int64_t> strides;  // of the batch dimensions
  int64_t step = 0;              // along the line, of whole elements
};

template <class T> class Pass {
 public:
  using V = Vector<T>;
  Kind kind;
  int64_t n;           // numbers in a real line, or in a complex one
  bool inverse, full;  // full: both halves of a real line's spectrum are written
  T scale = 1;
  std::vector<int64_t> sizes;  // of the batch dimensions, innermost last
  Side from, to;
  int64_t lines = 1, length = 0;  // of the complex transform
  bool half = false;              // a real line as one of half the length

  void prepare() {
    half = kind != Kind::Complex && n % 2 == 0;
    length = half ? n / 2 : n;
    for (const int64_t s : sizes) lines *= s;
    const int64_t in_cache = Lanes<T>::buffer(length);
    if (is_short())
      short_ = std::make_shared<const Short<T>>(length);
    else if (is_line())
      line_ = std::make_shared<const Line<T>>(length);
    else if (in_cache > kInCache || (2 * lines <= kLanes<T> && in_cache >= kCutShort && Long<T>::splits(length)))
      long_ = std::make_shared<const Long<T>>(length);
    else
      lanes_ = std::make_shared<const Lanes<T>>(length);
    if (half) pairs_ = Pairs<T>(n);
  }

  uint64_t workspace() const {
    return long_ ? static_cast<uint64_t>(2 * (n + 1) + long_->work()) * sizeof(Complex<T>) : 0;
  }
  uint64_t operations() const {
    return static_cast<uint64_t>(static_cast<double>(lines * n) * (4 + std::log2(static_cast<double>(n + 1))));
  }

  void run(const T* source, T* target, void* workspace) const {
    if (long_) {
      for (int64_t line = 0; line < lines; ++line)
        run_long(source + offset(line, from), target + offset(line, to), static_cast<Complex<T>*>(workspace));
      return;
    }
    constexpr int64_t lanes = kLanes<T>;
    if (line_) {
      parallel_for(lines, std::max<int64_t>(1, 16384 / n), [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line)
          run_line(reinterpret_cast<const Complex<T>*>(source + offset(line, from)),
                   reinterpret_cast<Complex<T>*>(target + offset(line, to)));
      });
      return;
    }
    if (short_) {
      const int64_t count = short_->lines(), groups = (lines + count - 1) / count;
      parallel_for(groups, std::max<int64_t>(1, 16384 / (n * count)), [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; ++group) run_short(source, target, group * count);
      });
      return;
    }
    const int64_t grain = std::max<int64_t>(1, 16384 / (n * lanes));
    parallel_for((lines + lanes - 1) / lanes, grain, [&](int64_t begin, int64_t end) {
      const int64_t size = std::max(Lanes<T>::buffer(length), n) + 1;
      Complex<V>*a = scratch<Complex<V>>(Held::Passes, size), *b = scratch<Complex<V>>(Held::OtherPasses, size);
      int64_t source_offsets[lanes], target_offsets[lanes];
      for (int64_t block = begin; block < end; ++block) {
        const int count = static_cast<int>(std::min(lanes, lines - block * lanes));
        for (int l = 0; l < count; ++l) {
          source_offsets[l] = offset(block * lanes + l, from);
          target_offsets[l] = offset(block * lanes + l, to);
        }
        run_group({source, source_offsets, count, from.step, part(from, kind == Kind::ToComplex)},
                  {target, target_offsets, count, to.step, part(to, kind == Kind::ToReal)}, a, b);
      }
    });
  }

 private:
  int64_t offset(int64_t line, const Side& side) const {
    int64_t at = 0;
    for (size_t d = sizes.size(); d-- > 1; line /= sizes[d]) at += line % sizes[d] * side.strides[d];
    return sizes.empty() ? 0 : at + line * side.strides[0];
  }
  // pairs of reals are taken for complex numbers
  int64_t part(const Side& side, bool real) const { return !real ? 1 : half ? side.step / 2 : kNoPart; }

  bool is_contiguous() const { return (kind == Kind::Complex || half) && from.step == 2 && to.step == 2; }
  // A real one's pairs are taken by whole registers.
  bool is_short() const {
    return is_contiguous() && Short<T>::takes(length) && (kind == Kind::Complex || length > kLanes<T>);
  }
  // Of few long ones, parts go to the threads.
  bool is_line() const {
    return is_contiguous() && Line<T>::takes(length) && (lines >= kLanes<T> || length <= kInCache);
  }

  int64_t spectrum() const { return full ? n : n / 2 + 1; }  // elements written of a real line's

  // All of a spectrum, from its transform.
  template <class U> void finish(const Complex<U>* z, Complex<U>* out, int64_t begin, int64_t end) const {
    for (int64_t k = begin; k < end; ++k) {
      const bool mirrored = k > n / 2;
      const int64_t i = mirrored ? n - k : k;
      const Complex<U> x = half ? pairs_.spectrum(z, i) : z[i];
      out[k] = mirrored ? conjugate(x) : x;
    }
    if (begin == 0) out[0].im = U{};
  }
  // What to transform, parts exchanged, for a real line of the spectrum x.
  template <class U, class X> void start(X x, Complex<U>* out, int64_t begin, int64_t end) const {
    for (int64_t k = begin; k < end; ++k) {
      if (half) {
        out[k] = swapped(pairs_.pairs(x(k), x(length - k), k));
      } else {
        Complex<U> z = k > n / 2 ? conjugate(x(n - k)) : x(k);
        if (k == 0) z.im = U{};
        out[k] = swapped(z);
      }
    }
  }

  void run_group(LineGroup<const T> in, LineGroup<T> out, Complex<V>* a, Complex<V>* b) const {
    if (kind == Kind::ToReal) {
      load_lines<T>(in, n / 2 + 1, false, b);
      start<V>([b](int64_t k) { return b[k]; }, a, 0, length);
    } else {
      load_lines<T>(in, length, inverse, a);
    }
    Complex<V>* c = lanes_->run(a, b);
    if (kind == Kind::ToComplex) {
      Complex<V>* d = c == a ? b : a;
      finish<V>(c, d, 0, spectrum());
      store_lines<T>(d, spectrum(), false, scale, out);
    } else {
      store_lines<T>(c, length, inverse, scale, out);
    }
  }

  void run_line(const Complex<T>* in, Complex<T>* out) const {
    if (kind == Kind::Complex) return line_->run(in, out, inverse, scale);
    auto* line = scratch<Complex<T>>(Held::Line, length);
    if (kind == Kind::ToComplex) {
      line_->run(in, line, false, scale);
      pairs_.spectrum(line, out, full);
    } else {
      pairs_.pairs(in, line);
      line_->run(line, out, true, scale);
    }
  }

  // Lines from `first` on, as many as fill the registers; the last one again where there are fewer.
  void run_short(const T* source, T* target, int64_t first) const {
    const int count = short_->lines();
    auto* waiting = scratch<Complex<T>>(Held::Line, count * length);
    const Complex<T>* in[Short<T>::kMost];
    Complex<T>* out[Short<T>::kMost];
    for (int l = 0; l < count; ++l) {
      const int64_t line = std::min(first + l, lines - 1);
      Complex<T>* aside = waiting + l * length;
      in[l] = reinterpret_cast<const Complex<T>*>(source + offset(line, from));
      if (kind == Kind::ToReal) {
        pairs_.pairs(in[l], aside);
        in[l] = aside;
      }
      const bool is_last = kind != Kind::ToComplex && first + l < lines;
      out[l] = is_last ? reinterpret_cast<Complex<T>*>(target + offset(line, to)) : aside;
    }
    short_->run(in, out, kind == Kind::ToReal || (kind == Kind::Complex && inverse), scale);
    if (kind != Kind::ToComplex) return;
    for (int l = 0; l < count && first + l < lines; ++l)
      pairs_.spectrum(waiting + l * length, reinterpret_cast<Complex<T>*>(target + offset(first + l, to)), full);
  }

  void run_long(const T* source, T* target, Complex<T>* work) const {
    constexpr int64_t grain = 16384;
    Complex<T>*line = work, *result = work + n + 1, *rest = result + n + 1;
    const int64_t in_step = from.step, in_part = part(from, kind == Kind::ToComplex);
    const int64_t out_step = to.step, out_part = part(to, kind == Kind::ToReal);
    const auto element = [&](int64_t k) {
      const T* p = source + k * in_step;
      return Complex<T>{p[0], in_part != kNoPart ? p[in_part] : T(0)};
    };
    const bool read_there = kind != Kind::ToReal && in_step == 2 && in_part == 1;
    const bool write_there = kind != Kind::ToComplex && out_step == 2 && out_part == 1;
    const Complex<T>* given = reinterpret_cast<const Complex<T>*>(source);
    if (kind == Kind::ToReal) {
      parallel_for(length, grain, [&](int64_t begin, int64_t end) {
        start<T>(element, line, begin, end);
        for (int64_t k = begin; k < end; ++k) line[k] = swapped(line[k]);  // the transform exchanges them itself
      });
      given = line;
    } else if (!read_there) {
      parallel_for(length, grain, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) line[k] = element(k);
      });
      given = line;
    }
    long_->run(given, write_there ? reinterpret_cast<Complex<T>*>(target) : result, rest, inverse, scale);
    if (write_there) return;
    const int64_t count = kind == Kind::ToComplex ? spectrum() : length;
    parallel_for(count, grain, [&](int64_t begin, int64_t end) {
      const Complex<T>* values = result;
      if (kind == Kind::ToComplex) {
        finish<T>(result, line, begin, end);
        values = line;
      }
      for (int64_t k = begin; k < end; ++k) {
        T* p = target + k * out_step;
        p[0] = values[k].re;
        if (out_part != kNoPart) p[out_part] = values[k].im;
      }
    });
  }

  Pairs<T> pairs_;
  std::shared_ptr<const Short<T>> short_;
  std::shared_ptr<const Line<T>> line_;
  std::shared_ptr<const Lanes<T>> lanes_;
  std::shared_ptr<const Long<T>> long_;
};

// One dimension `dim` of tensors of these sizes; strides are in elements of `in` and `out`.
template <class T>
Pass<T> make_pass(Kind kind, size_t dim, int64_t n, bool inverse, const std::vector<int64_t>& sizes,
                  const std::vector<int64_t>& in, const std::vector<int64_t>& out) {
  Pass<T> pass;
  pass.kind = kind;
  pass.n = n;
  pass.inverse = inverse;
  pass.full = false;
  const int64_t in_unit = kind == Kind::ToComplex ? 1 : 2, out_unit = kind == Kind::ToReal ? 1 : 2;
  std::vector<size_t> order;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (d != dim && sizes[d] != 1) order.push_back(d);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return out[a] > out[b]; });
  for (const size_t d : order) {
    pass.sizes.push_back(sizes[d]);
    pass.from.strides.push_back(in[d] * in_unit);
    pass.to.strides.push_back(out[d] * out_unit);
  }
  const bool pairs = n % 2 == 0;
  pass.from.step = in[dim] * in_unit * (kind == Kind::ToComplex && pairs ? 2 : 1);
  pass.to.step = out[dim] * out_unit * (kind == Kind::ToReal && pairs ? 2 : 1);
  pass.prepare();
  return pass;
}

// What a transform does: passes from the operand to the result, or by way of the workspace's first part.
template <class T> struct Program {
  std::vector<Pass<T>> passes;
  std::vector<int64_t> sources, targets;  // 0: operand, 1: result, 2: workspace
  uint64_t held = 0;                      // bytes of the workspace that hold a tensor
  void add(Pass<T> pass, int source, int target) {
    passes.push_back(std::move(pass));
    sources.push_back(source);
    targets.push_back(target);
  }
};

template <class T>
std::unique_ptr<Plan> plan_of(Program<T> program, const Operand& in, const Operand& out, double scale) {
  program.passes.back().scale = static_cast<T>(scale);
  uint64_t work = 0, most = 0;
  for (const auto& pass : program.passes) {
    work += pass.operations();
    most = std::max(most, pass.workspace());
  }
  const uint64_t held = (program.held + 63) / 64 * 64;
  auto plan = make_plan(work, [program = std::move(program), held, in, out](const Launch& l) {
    char* workspace = static_cast<char*>(l.workspace);
    T* places[] = {l.data<T>(in), l.data<T>(out), reinterpret_cast<T*>(workspace)};
    for (size_t i = 0; i < program.passes.size(); ++i)
      program.passes[i].run(places[program.sources[i]], places[program.targets[i]], workspace + held);
  });
  plan->workspace_bytes = held + most;
  return plan;
}

struct Dimensions {
  std::vector<size_t> list;
  double scale;
};
Dimensions dimensions(const Request& r, const std::vector<int64_t>& signal) {
  Dimensions d{{}, 1};
  const int64_t rank = static_cast<int64_t>(signal.size());
  double n = 1;
  for (int64_t dim : r.integers("dim", std::vector<int64_t>{})) {
    if (dim < 0) dim += rank;
    if (dim < 0 || dim >= rank) throw Invalid("a Fourier transform's dimension is out of range");
    if (std::find(d.list.begin(), d.list.end(), static_cast<size_t>(dim)) != d.list.end())
      throw Invalid("a Fourier transform's dimension is given twice");
    d.list.push_back(static_cast<size_t>(dim));
    n *= static_cast<double>(signal[static_cast<size_t>(dim)]);
  }
  const int64_t normalization = r.integer("normalization", 0);
  if (normalization == 1) d.scale = 1 / std::sqrt(n);
  if (normalization == 2) d.scale = 1 / n;
  return d;
}

template <class F> std::unique_ptr<Plan> by_type(const Operand& in, const Operand& out, F&& make) {
  const auto width = [](const Operand& o) { return item_size(o.dtype) / (is_complex(o.dtype) ? 2 : 1); };
  if (out.numel() == 0) return make_plan(0, [](const Launch&) {});
  if (is_integral(in.dtype) || width(in) != width(out)) throw Declined("no Fourier transform between these types");
  if (width(in) == 8) return make(double{});
  if (width(in) == 4) return make(float{});
  throw Declined(std::string("no Fourier transform of ") + dtype_name(in.dtype));
}

// ---- small float32 transforms in double: their time is the launch's, and results then are rounded once ----

constexpr int64_t kSmall = 2048;  // elements; a transform of these takes 10 us

// f(offset, place) for each element in row-major order, `offset` by the operand's strides.
template <class F> void each_element(const Operand& o, F&& f) {
  const int rank = o.rank();
  std::vector<int64_t> index(static_cast<size_t>(rank), 0);
  int64_t offset = 0;
  for (int64_t place = 0, n = o.numel(); place < n; ++place) {
    f(offset, place);
    for (size_t d = static_cast<size_t>(rank); d-- > 0;) {
      offset += o.strides[d];
      if (++index[d] < o.sizes[d]) break;
      offset -= o.strides[d] * o.sizes[d];
      index[d] = 0;
    }
  }
}
Operand widened(Operand o) {
  o.dtype = is_complex(o.dtype) ? Dtype::C128 : Dtype::F64;
  int64_t numel = 1;
  for (size_t d = o.sizes.size(); d-- > 0; numel *= o.sizes[d]) o.strides[d] = numel;
  return o;
}
class InDouble final : public Plan {
 public:
  InDouble(std::unique_ptr<Plan> inner, const Operand& in, const Operand& out, int operands)
      : inner_(std::move(inner)), in_(in), out_(out), operands_(static_cast<size_t>(operands)) {
    work = inner_->work;
    workspace_bytes = inner_->workspace_bytes + static_cast<uint64_t>(in.numel() + out.numel()) * sizeof(c128);
  }
  void run(const Launch& launch) const override {
    void* pointers[8];
    c128* from = static_cast<c128*>(launch.workspace);
    c128* to = from + in_.numel();
    std::copy_n(launch.pointers, operands_, pointers);
    pointers[in_.slot] = from;
    pointers[out_.slot] = to;
    const bool complex = is_complex(in_.dtype);
    each_element(in_, [&, given = launch.data(in_)](int64_t offset, int64_t place) {
      if (complex)
        from[place] = c128(static_cast<const c64*>(given)[offset]);
      else
        reinterpret_cast<double*>(from)[place] = static_cast<double>(static_cast<const float*>(given)[offset]);
    });
    Launch wide = launch;
    wide.pointers = pointers;
    wide.workspace = to + out_.numel();
    inner_->run(wide);
    const bool complex_result = is_complex(out_.dtype);
    each_element(out_, [&, result = launch.data(out_)](int64_t offset, int64_t place) {
      if (complex_result)
        static_cast<c64*>(result)[offset] = c64(to[place]);
      else
        static_cast<float*>(result)[offset] = static_cast<float>(reinterpret_cast<const double*>(to)[place]);
    });
  }

 private:
  std::unique_ptr<Plan> inner_;
  Operand in_, out_;
  size_t operands_;
};

template <auto Make> std::unique_ptr<Plan> transform(const Request& r) {
  const Operand &in = r.in(0), &out = r.out();
  const bool single =
      (in.dtype == Dtype::F32 || in.dtype == Dtype::C64) && (out.dtype == Dtype::F32 || out.dtype == Dtype::C64);
  if (!single || std::max(in.numel(), out.numel()) > kSmall || out.numel() == 0 || r.operand_count() > 8)
    return Make(r, in, out);
  return std::make_unique<InDouble>(Make(r, widened(in), widened(out)), in, out, r.operand_count());
}

std::unique_ptr<Plan> c2c(const Request& r, const Operand& in, const Operand& out) {
  if (in.sizes != out.sizes || !is_complex(in.dtype)) throw Invalid("_fft_c2c got operands of other sizes");
  return by_type(in, out, [&]<class T>(T) -> std::unique_ptr<Plan> {
    const Dimensions d = dimensions(r, in.sizes);
    Program<T> program;
    if (d.list.empty()) {  // a copy: lines of one element in a dimension of their own
      const auto with_one = [](std::vector<int64_t> list) { return list.push_back(1), list; };
      program.add(make_pass<T>(Kind::Complex, in.sizes.size(), 1, false, with_one(in.sizes), with_one(in.strides),
                               with_one(out.strides)),
                  0, 1);
    }
    for (size_t i = d.list.size(); i-- > 0;) {
      const bool first = program.passes.empty();
      program.add(make_pass<T>(Kind::Complex, d.list[i], in.sizes[d.list[i]], !r.boolean("forward", true), in.sizes,
                               first ? in.strides : out.strides, out.strides),
                  first ? 0 : 1, 1);
    }
    return plan_of(std::move(program), in, out, d.scale);
  });
}
MACA_KERNEL("_fft_c2c", transform<c2c>);

std::unique_ptr<Plan> r2c(const Request& r, const Operand& in, const Operand& out) {
  return by_type(in, out, [&]<class T>(T) -> std::unique_ptr<Plan> {
    const Dimensions d = dimensions(r, in.sizes);
    if (d.list.empty()) throw Invalid("_fft_r2c needs a dimension");
    const size_t last = d.list.back();
    const bool full = !r.boolean("onesided", true);
    std::vector<int64_t> sizes = in.sizes;
    sizes[last] = full ? in.sizes[last] : in.sizes[last] / 2 + 1;
    if (sizes != out.sizes) throw Invalid("_fft_r2c got a result of other sizes");
    Program<T> program;
    Pass<T> pass = make_pass<T>(Kind::ToComplex, last, in.sizes[last], false, in.sizes, in.strides, out.strides);
    pass.full = full;
    program.add(std::move(pass), 0, 1);
    for (size_t i = d.list.size() - 1; i-- > 0;)
      program.add(make_pass<T>(Kind::Complex, d.list[i], sizes[d.list[i]], false, sizes, out.strides, out.strides), 1,
                  1);
    return plan_of(std::move(program), in, out, d.scale);
  });
}
MACA_KERNEL("_fft_r2c", transform<r2c>);

std::unique_ptr<Plan> c2r(const Request& r, const Operand& in, const Operand& out) {
  return by_type(in, out, [&]<class T>(T) -> std::unique_ptr<Plan> {
    const Dimensions d = dimensions(r, out.sizes);
    if (d.list.empty()) throw Invalid("_fft_c2r needs a dimension");
    const size_t last = d.list.back();
    const int64_t n = out.sizes[last];
    std::vector<int64_t> sizes = out.sizes;
    sizes[last] = in.sizes[last];
    if (sizes != in.sizes || in.sizes[last] < n / 2 + 1)
      throw Invalid("_fft_c2r got too few numbers for its last_dim_size");
    // the other dimensions first: what is not Hermitian then ends as in PyTorch, and never in the operand
    std::vector<int64_t> strides(sizes.size());
    int64_t numel = 1;
    for (size_t k = sizes.size(); k-- > 0; numel *= sizes[k]) strides[k] = numel;
    Program<T> program;
    for (size_t i = d.list.size() - 1; i-- > 0;) {
      const bool first = program.passes.empty();
      program.add(
          make_pass<T>(Kind::Complex, d.list[i], sizes[d.list[i]], true, sizes, first ? in.strides : strides, strides),
          first ? 0 : 2, 2);
    }
    const bool only = program.passes.empty();
    if (!only) program.held = static_cast<uint64_t>(numel) * sizeof(Complex<T>);
    program.add(make_pass<T>(Kind::ToReal, last, n, true, out.sizes, only ? in.strides : strides, out.strides),
                only ? 0 : 2, 1);
    return plan_of(std::move(program), in, out, d.scale);
  });
}
MACA_KERNEL("_fft_c2r", transform<c2r>);

}  // namespace
}  // namespace maca::MACA_ISA::fft
