// Matrix products on oneDNN: float32, bfloat16, float16 (in float32 where the CPU has no half arithmetic), and int8
// where the CPU has instructions for it.
#include <mutex>

#include "matmul.h"
#include "onednn/engine.h"
#include "onednn/staging.h"
#include "processor.h"

namespace maca::matmul {
namespace {

using onednn::Call;
using onednn::Desc;
using onednn::Dims;
using onednn::Workspace;

Desc descriptor(const Matrix& m, bool batched) {
  const int64_t lead = m.leading();
  Dims sizes{m.rows, m.columns}, strides = m.row_major() ? Dims{lead, 1} : Dims{1, lead};
  if (batched) {
    const int64_t batch = m.batch_stride == 0 ? 1 : m.batch;  // an expanded batch is oneDNN's broadcast
    sizes.insert(sizes.begin(), batch);
    strides.insert(strides.begin(), batch == 1 ? m.rows * m.columns : m.batch_stride);
  }
  return {sizes, onednn::data_type(m.dtype), strides};
}

// The copy of `m` that oneDNN computes from: dense, the orientation kept so that no transposition is paid.
Matrix dense(const Matrix& m, Dtype type, bool keep_broadcast) {
  Matrix d = !m.row_major() && m.column_major() ? m.transposed().compact(type).transposed() : m.compact(type);
  if (keep_broadcast && m.batch_stride == 0) d.batch_stride = 0;
  return d;
}

// Whether oneDNN takes the strides of a batch: its members lie one after another, or their rows in turn.
bool is_batch_regular(const Matrix& m) {
  const int64_t lines = m.row_major() ? m.rows : m.columns, length = m.row_major() ? m.columns : m.rows;
  const int64_t lead = m.leading();
  return m.batch == 1 || m.batch_stride == 0 || m.batch_stride >= lines * lead ||
         (m.batch_stride >= length && lead >= m.batch * m.batch_stride);
}
bool is_taken(const Matrix& m, Dtype type) { return m.blas() && is_batch_regular(m) && m.dtype == type; }

constexpr int64_t kCacheLine = 16;  // floats

class OnednnPlan final : public Plan {
 public:
  OnednnPlan(const Problem& p, Dtype type) : p_(p), a_(p.a), b_(p.b), type_(type) {
    const bool native = type == p.out.dtype;
    batched_ = p.out.batch > 1;
    work = p.work();
    if (p.out.numel() == 0) return;
    Workspace space;
    const bool bias = p.self && p.self->repeats_one_row() && !batched_;
    // oneDNN's own relu makes 0 of NaN, combine() does not.
    direct_ = native && p.out.row_major() && p.k() > 0 && (!p.self || bias) && p.activation == Activation::None;
    in_place_ = p.out.dtype == Dtype::F32 && p.out.row_major();
    acc_ = in_place_ ? p.out : p.out.compact(Dtype::F32);
    if (direct_ && p.self) stage_bias(space);
    if (!direct_ && !in_place_) acc_offset_ = space.take(static_cast<uint64_t>(acc_.numel()) * 4);

    if (p.k() > 0) {
      if (!is_taken(p.a, type_))
        stage_a(space);
      else if (rows_collide())
        stage_a(space, kCacheLine);
      const bool both_broadcast = batched_ && p.a.batch_stride == 0 && p.b.batch_stride == 0;
      if (!is_taken(p.b, type_) || both_broadcast) stage_b(space, !both_broadcast);
      onednn::declined_if_refused([&] {
        build(space);
        // Strides that oneDNN's fast kernels do not know end in its reference loops, 100x slower: copy instead.
        if (onednn::is_reference(implementation) && (a_offset_ == Workspace::kNone || b_offset_ == Workspace::kNone)) {
          if (a_offset_ == Workspace::kNone) stage_a(space);
          if (b_offset_ == Workspace::kNone) stage_b(space, !both_broadcast);
          build(space);
        }
      });
    }
    workspace_bytes = space.bytes();
  }

  void pack(const void* operand, void* packed) const override {
    void* const addresses[] = {const_cast<void*>(operand), packed};
    reorder_(addresses);
  }

  void run(const Launch& launch) const override {
    if (p_.out.numel() == 0) return;
    auto* out = launch.data(p_.out.slot);
    void* scratch = scratch_offset_ == Workspace::kNone ? nullptr : onednn::at(launch.workspace, scratch_offset_);
    void* a = staged(launch, p_.a, a_, a_offset_);
    void* b = nullptr;
    if (direct_ && is_one(launch, p_.alpha_slot) && (!p_.self || is_one(launch, p_.beta_slot))) {
      const bool packed = launch.packed && packed_call_;
      b = packed ? const_cast<void*>(launch.packed) : staged(launch, p_.b, b_, b_offset_);
      void* const addresses[] = {a, b, out, scratch,
                                 p_.self ? staged(launch, bias_from_, bias_, bias_offset_) : nullptr};
      (packed ? packed_call_ : direct_call_)(std::span(addresses, p_.self ? 5 : 4));
      return;
    }
    b = p_.k() > 0 ? staged(launch, p_.b, b_, b_offset_) : nullptr;
    std::unique_ptr<char[]> heap;  // alpha or beta other than one next to a bias: rare, not worth a workspace
    void* acc = out;
    if (!in_place_) {
      if (acc_offset_ != Workspace::kNone)
        acc = onednn::at(launch.workspace, acc_offset_);
      else
        acc = (heap = std::make_unique<char[]>(static_cast<size_t>(acc_.numel()) * 4)).get();
    }
    if (p_.k() == 0) {
      if (in_place_)
        for (int64_t i = 0; i < acc_.batch; ++i)
          for (int64_t r = 0; r < acc_.rows; ++r)
            std::memset(static_cast<float*>(acc) + i * acc_.batch_stride + r * acc_.leading(), 0,
                        static_cast<size_t>(acc_.columns) * 4);
      else
        std::memset(acc, 0, static_cast<size_t>(acc_.numel()) * 4);
    } else {
      if (direct_) std::call_once(general_once_, [&] { general_call_ = make(false, false, general_bytes_); });
      std::unique_ptr<char[]> own_scratch;
      if (direct_ && general_bytes_ > 0) {
        own_scratch = std::make_unique<char[]>(general_bytes_ + 64);
        scratch = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(own_scratch.get()) + 63) / 64 * 64);
      }
      void* const addresses[] = {a, b, acc, scratch};
      general_call_(addresses);
    }
    combine(p_, launch, acc_, acc, out);
  }

 private:
  // `gap`: elements between the rows of the copy.
  void stage_a(Workspace& space, int64_t gap = 0) {
    a_ = dense(p_.a, type_, true);
    a_.row_stride += gap;
    a_offset_ = space.take(static_cast<uint64_t>(a_.numel() + gap * a_.rows) * static_cast<uint64_t>(item_size(type_)));
  }
  void stage_b(Workspace& space, bool keep_broadcast) {
    b_ = dense(p_.b, type_, keep_broadcast);
    b_offset_ = space.take(static_cast<uint64_t>(b_.numel()) * static_cast<uint64_t>(item_size(type_)));
  }
  // Rows two pages apart meet in few sets of the caches: 2048^3 takes 6 to 12 % longer than from a copy with gaps, the
  // copy included (AVX-512; one page apart no longer).
  bool rows_collide() const {
    return allowed_isa() == Isa::Avx512 && type_ == Dtype::F32 && !batched_ && p_.a.row_major() &&
           p_.a.leading() % 2048 == 0 && p_.m() >= 256 && p_.n() >= 1024;
  }
  // oneDNN's float16 products take a bias of float32 alone.
  void stage_bias(Workspace& space) {
    bias_from_ = *p_.self;
    bias_from_.batch = bias_from_.rows = 1;
    bias_ = bias_from_.compact(type_ == Dtype::F16 ? Dtype::F32 : type_);
    if (bias_.dtype != bias_from_.dtype) bias_offset_ = space.take(static_cast<uint64_t>(p_.n()) * 4);
  }
  static void* staged(const Launch& launch, const Matrix& from, const Matrix& to, uint64_t offset) {
    if (offset == Workspace::kNone) return launch.data(from.slot);
    void* copied = onednn::at(launch.workspace, offset);
    Matrix source = from, target = to;
    if (to.batch_stride == 0) source.batch = target.batch = 1;
    copy(source, launch.data(from.slot), target, copied);
    return copied;
  }

  // A primitive: into out with bias, or bare into the float32 accumulator. Notes its scratch size.
  Call make(bool direct, bool packed, uint64_t& scratch_bytes) const {
    const auto attr = onednn::attributes();
    const Desc a = descriptor(a_, batched_), out = descriptor(direct ? p_.out : acc_, batched_);
    Desc b = descriptor(b_, batched_);
    if (packed) b = Desc(b.get_dims(), b.get_data_type(), dnnl::memory::format_tag::any);
    const bool with_bias = direct && p_.self;
    const Desc bias = with_bias ? Desc({1, p_.n()}, onednn::data_type(bias_.dtype), Dims{p_.n(), 1}) : Desc();
    const auto pd = with_bias ? dnnl::matmul::primitive_desc(onednn::engine(), a, b, bias, out, attr)
                              : dnnl::matmul::primitive_desc(onednn::engine(), a, b, out, attr);
    impl_ = pd.impl_info_str();
    scratch_bytes = std::max<uint64_t>(scratch_bytes, pd.scratchpad_desc().get_size());
    std::vector<Call::Argument> arguments{{DNNL_ARG_SRC, a},
                                          {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                          {DNNL_ARG_DST, out},
                                          {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}};
    if (with_bias) arguments.push_back({DNNL_ARG_BIAS, bias});
    if (packed) packed_desc_ = pd.weights_desc();
    return Call(dnnl::matmul(pd), arguments);
  }

  void build(Workspace& space) {
    uint64_t scratch = 0;
    if (direct_)
      direct_call_ = make(true, false, scratch);
    else
      general_call_ = make(false, false, scratch);
    implementation = "onednn matmul " + impl_;
    // A transposed weight under few rows is read 1.3 to 3 times as fast across. The kernels for AVX-512 (brg) copy any
    // weight into blocks of their own at every call: 5 to 15 % of a float32 product of 256 to 1024, a third of a
    // bfloat16 one with AMX. The sums are the same ones where the kernel is the same one, which the strides may change;
    // that for AVX2 cuts them otherwise under more than 64 rows of a weight that lies the other way.
    const bool gains = impl_.starts_with("brg") || (!p_.b.row_major() && p_.m() <= 64);
    const bool weight = p_.packs() && direct_ && b_offset_ == Workspace::kNone && gains;
    if (weight) try {
        Call packed = make(true, true, scratch);
        if (implementation == "onednn matmul " + impl_) {
          packed_call_ = std::move(packed);
          const Desc plain = descriptor(b_, batched_);
          const dnnl::reorder::primitive_desc pd(onednn::engine(), plain, onednn::engine(), packed_desc_);
          reorder_ = Call(dnnl::reorder(pd), {{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, packed_desc_}});
          packed_operand = p_.b.slot;
          packed_bytes = packed_desc_.get_size();
        }
      } catch (const dnnl::error&) {  // no memory for more code: the weight is read as it is
      }
    if (scratch > 0) scratch_offset_ = space.take(scratch);
  }

  Problem p_;
  Matrix a_, b_, acc_;  // what oneDNN sees
  Matrix bias_from_, bias_;
  Dtype type_;
  bool batched_ = false, direct_ = false, in_place_ = false;
  uint64_t a_offset_ = Workspace::kNone, b_offset_ = Workspace::kNone, acc_offset_ = Workspace::kNone,
           scratch_offset_ = Workspace::kNone, bias_offset_ = Workspace::kNone;
  Call direct_call_, packed_call_, reorder_;
  mutable Call general_call_;
  mutable std::once_flag general_once_;
  mutable Desc packed_desc_;
  mutable uint64_t general_bytes_ = 0;
  mutable std::string impl_;
};

// Exactly, in int32.
class Int8Plan final : public Plan {
 public:
  Int8Plan(const Matrix& a, const Matrix& b, const Matrix& out) : slots_{a.slot, b.slot, out.slot} {
    const Desc left = descriptor(a, false), right = descriptor(b, false), result = descriptor(out, false);
    onednn::declined_if_refused([&] {
      const dnnl::matmul::primitive_desc pd(onednn::engine(), left, right, result, onednn::attributes());
      implementation = std::string("onednn matmul ") + pd.impl_info_str();
      const Desc scratch = pd.scratchpad_desc();
      call_ = Call(
          dnnl::matmul(pd),
          {{DNNL_ARG_SRC, left}, {DNNL_ARG_WEIGHTS, right}, {DNNL_ARG_DST, result}, {DNNL_ARG_SCRATCHPAD, scratch}});
      workspace_bytes = scratch.get_size();
    });
    work = static_cast<uint64_t>(out.numel()) * static_cast<uint64_t>(a.columns + 7) / 8;
  }

  void run(const Launch& launch) const override {
    void* const addresses[] = {launch.data(slots_[0]), launch.data(slots_[1]), launch.data(slots_[2]),
                               launch.workspace};
    call_(addresses);
  }

 private:
  std::array<int, 3> slots_;
  Call call_;
};

// The same by oneDNN's routine in the manner of BLAS, which takes 0.8 to 0.9 of the primitive's time where there are no
// tiles (1024 x 1024 x 1024, a Xeon with AVX-512, model 106, 1 and 2 threads).
class Int8BlasPlan final : public Plan {
 public:
  Int8BlasPlan(const Matrix& a, const Matrix& b, const Matrix& out) : a_(a), b_(b), out_(out) {
    implementation = "onednn gemm of bytes";
    work = static_cast<uint64_t>(out.numel()) * static_cast<uint64_t>(a.columns + 7) / 8;
  }

  void run(const Launch& launch) const override {
    const auto multiply = [&](auto gemm, auto tag) {
      using A = decltype(tag);
      const int32_t none = 0;
      onednn::check(gemm(a_.row_major() ? 'N' : 'T', b_.row_major() ? 'N' : 'T', 'F', a_.rows, b_.columns, a_.columns,
                         1.0f, launch.data<const A>(a_.slot), a_.leading(), 0, launch.data<const int8_t>(b_.slot),
                         b_.leading(), 0, 0.0f, launch.data<int32_t>(out_.slot), out_.leading(), &none));
    };
    if (a_.dtype == Dtype::I8)
      multiply(dnnl_gemm_s8s8s32, int8_t());
    else
      multiply(dnnl_gemm_u8s8s32, uint8_t());
  }

 private:
  Matrix a_, b_, out_;
};

// Where there is no oneDNN: float32 from copies of the factors, in panels or on OpenBLAS.
class WidenedPlan final : public Plan {
 public:
  explicit WidenedPlan(const Problem& p) : p_(p), product_of_(bare(p)) {
    product_ = p.k() > 0 ? panels_plan(product_of_) : nullptr;
    if (!product_) product_ = blas_plan(product_of_);
    Workspace space;
    inner_ = space.take(product_->workspace_bytes);
    for (size_t i = 0; const Matrix* m : {&product_of_.a, &product_of_.b, &product_of_.out})
      offsets_[i++] = space.take(static_cast<uint64_t>(m->numel()) * 4);
    workspace_bytes = space.bytes();
    work = product_->work;
    implementation = "float32 by " + product_->implementation;
  }

  void run(const Launch& launch) const override {
    void* pointers[3];
    for (size_t i = 0; i < 3; ++i) pointers[i] = onednn::at(launch.workspace, offsets_[i]);
    copy(p_.a, launch.data(p_.a.slot), product_of_.a, pointers[0]);
    copy(p_.b, launch.data(p_.b.slot), product_of_.b, pointers[1]);
    product_->run({pointers, nullptr, onednn::at(launch.workspace, inner_), nullptr, 0, 0});
    combine(p_, launch, product_of_.out, pointers[2], launch.data(p_.out.slot));
  }

 private:
  static Problem bare(const Problem& p) {
    Problem only;
    only.a = p.a.compact(Dtype::F32), only.b = p.b.compact(Dtype::F32), only.out = p.out.compact(Dtype::F32);
    only.a.slot = 0, only.b.slot = 1, only.out.slot = 2;
    return only;
  }

  Problem p_, product_of_;
  std::unique_ptr<Plan> product_;
  uint64_t inner_ = 0, offsets_[3] = {};
};

}  // namespace

std::unique_ptr<Plan> onednn_plan(const Problem& p) {
  if (!onednn::kPresent) {
    if (p.out.dtype != Dtype::F32) return std::make_unique<WidenedPlan>(p);
    std::unique_ptr<Plan> plan = p.k() > 0 ? panels_plan(p) : nullptr;
    return plan ? std::move(plan) : blas_plan(p);
  }
  // copies of the factors in float32 would cost more than these few products of each number
  constexpr int64_t kFew = 8;
  const bool few = std::min({p.m(), p.n(), p.k()}) <= kFew;
  return onednn::plan_in(p.out.dtype, [&](Dtype type) { return std::make_unique<OnednnPlan>(p, type); }, few);
}

std::unique_ptr<Plan> onednn_int8_plan(const Matrix& a, const Matrix& b, const Matrix& out) {
  const bool bytes = (a.dtype == Dtype::I8 || a.dtype == Dtype::U8) && b.dtype == Dtype::I8 && out.dtype == Dtype::I32;
  const bool suits = bytes && onednn::computes(Dtype::I8) && a.columns > 0 && out.numel() > 0;
  if (!suits || !a.blas() || !b.blas() || !out.row_major()) return nullptr;
  if (!onednn::multiplies_in_tiles()) return std::make_unique<Int8BlasPlan>(a, b, out);
  auto plan = std::make_unique<Int8Plan>(a, b, out);
  return onednn::is_reference(plan->implementation) ? nullptr : std::move(plan);
}

}  // namespace maca::matmul
