#include "onednn/engine.h"

#include <cstdlib>

#include "processor.h"

namespace maca::onednn {

dnnl::engine& engine() {
  static auto* e = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // outlives plans freed at exit
  return *e;
}

namespace {
dnnl::stream& stream() {  // without state on a CPU, so one serves all threads
  static auto* s = new dnnl::stream(engine());
  return *s;
}
}  // namespace

#if defined(MACA_WITHOUT_ONEDNN)
void limit_instruction_set() {}
std::string description() { return "no oneDNN"; }
bool computes(Dtype d) { return d == Dtype::F32; }
bool emulates(Dtype) { return false; }
bool multiplies_in_tiles() { return false; }
#else
void limit_instruction_set() {
  if (tiles_allowed() || std::getenv("ONEDNN_MAX_CPU_ISA")) return;
  switch (allowed_isa()) {
    case Isa::Baseline: dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41); break;
    case Isa::Avx2: dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2); break;
    case Isa::Avx512: dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core); break;
  }
}

namespace {
std::string instruction_set() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41: return "sse41";
    case dnnl_cpu_isa_avx: return "avx";
    case dnnl_cpu_isa_avx2: return "avx2";
    case dnnl_cpu_isa_avx2_vnni: return "avx2_vnni";
    case dnnl_cpu_isa_avx2_vnni_2: return "avx2_vnni_2";
    case dnnl_cpu_isa_avx512_core: return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni: return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16: return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_fp16: return "avx512_core_fp16";
    case dnnl_cpu_isa_avx512_core_amx: return "avx512_core_amx";
    case dnnl_cpu_isa_avx512_core_amx_fp16: return "avx512_core_amx_fp16";
    default: return "generic";  // other processors
  }
}
}  // namespace

std::string description() {
  const dnnl_version_t& v = *dnnl_version();
  return "oneDNN " + std::to_string(v.major) + '.' + std::to_string(v.minor) + '.' + std::to_string(v.patch) + " (" +
         instruction_set() + ')';
}

namespace {
bool has(dnnl::cpu_isa level) {
  static const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (isa & static_cast<unsigned>(level)) == static_cast<unsigned>(level);
}
}  // namespace

bool computes(Dtype d) {
  switch (d) {
    case Dtype::F32: return true;
    case Dtype::BF16: return has(dnnl::cpu_isa::avx512_core_bf16);
    case Dtype::F16: return has(dnnl::cpu_isa::avx512_core_fp16);
    case Dtype::I8: return has(dnnl::cpu_isa::avx512_core_vnni);
    default: return false;
  }
}
bool emulates(Dtype d) { return d == Dtype::BF16 && has(dnnl::cpu_isa::avx512_core) && !computes(d); }
bool multiplies_in_tiles() { return has(dnnl::cpu_isa::avx512_core_amx); }
#endif

dnnl::memory::data_type data_type(Dtype d) {
  switch (d) {
    case Dtype::F32: return dnnl::memory::data_type::f32;
    case Dtype::BF16: return dnnl::memory::data_type::bf16;
    case Dtype::F16: return dnnl::memory::data_type::f16;
    case Dtype::I8: return dnnl::memory::data_type::s8;
    case Dtype::U8: return dnnl::memory::data_type::u8;
    case Dtype::I32: return dnnl::memory::data_type::s32;
    default: throw Declined(std::string("oneDNN has no ") + dtype_name(d));
  }
}

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attr.set_fpmath_mode(dnnl::fpmath_mode::strict);
  return attr;
}

void check(dnnl_status_t status) {
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  if (status != dnnl_success)
    throw LaunchError(MACA_ERROR_INTERNAL, std::string("oneDNN failed with status ") + std::to_string(status));
}

Call::Call(const dnnl::primitive& primitive, const std::vector<Argument>& arguments)
    : primitive_(primitive), arguments_(arguments), own_(bind()) {}

Call::Call(Call&& other) noexcept { *this = std::move(other); }

Call& Call::operator=(Call&& other) noexcept {
  primitive_ = std::move(other.primitive_);
  arguments_ = std::move(other.arguments_);
  own_ = std::move(other.own_);
  return *this;
}

Call::Bound Call::bind() const {
  Bound bound;
  for (const Argument& a : arguments_) {
    bound.memory.emplace_back(a.desc, engine(), nullptr);
    bound.arguments.push_back({a.index, bound.memory.back().get()});
  }
  return bound;
}

void Call::execute(Bound& bound, std::span<void* const> addresses) const {
  for (size_t i = 0; i < addresses.size(); ++i) dnnl_memory_set_data_handle(bound.arguments[i].memory, addresses[i]);
  const dnnl_status_t status = dnnl_primitive_execute(primitive_.get(), stream().get(),
                                                      static_cast<int>(bound.arguments.size()), bound.arguments.data());
  check(status);
}

void Call::operator()(std::span<void* const> addresses) const {
  if (!busy_.test_and_set(std::memory_order_acquire)) {
    struct Release {
      std::atomic_flag& flag;
      ~Release() { flag.clear(std::memory_order_release); }
    } release{busy_};
    execute(own_, addresses);
  } else {  // the same plan runs on another thread at this moment
    Bound bound = bind();
    execute(bound, addresses);
  }
}

}  // namespace maca::onednn
