// In place of oneDNN's header where there is no oneDNN, whose wheels are for x86-64 alone: the names that we use.
// Whoever describes a primitive is refused; onednn::kPresent says so beforehand.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#define MACA_WITHOUT_ONEDNN

enum dnnl_status_t { dnnl_success, dnnl_out_of_memory, dnnl_unimplemented };
enum dnnl_argument {
  DNNL_ARG_FROM,
  DNNL_ARG_TO,
  DNNL_ARG_SRC,
  DNNL_ARG_WEIGHTS,
  DNNL_ARG_BIAS,
  DNNL_ARG_DST,
  DNNL_ARG_DIFF_SRC,
  DNNL_ARG_DIFF_WEIGHTS,
  DNNL_ARG_DIFF_DST,
  DNNL_ARG_SCRATCHPAD
};
struct dnnl_exec_arg_t {
  int arg;
  void* memory;
};
inline dnnl_status_t dnnl_memory_set_data_handle(void*, void*) { return dnnl_unimplemented; }
inline dnnl_status_t dnnl_primitive_execute(const void*, void*, int, const dnnl_exec_arg_t*) {
  return dnnl_unimplemented;
}
template <class A>
dnnl_status_t dnnl_gemm(char, char, char, int64_t, int64_t, int64_t, float, const A*, int64_t, A, const int8_t*,
                        int64_t, int8_t, float, int32_t*, int64_t, const int32_t*) {
  return dnnl_unimplemented;
}
inline constexpr auto dnnl_gemm_s8s8s32 = dnnl_gemm<int8_t>;
inline constexpr auto dnnl_gemm_u8s8s32 = dnnl_gemm<uint8_t>;

namespace dnnl {

struct error : std::exception {
  const char* message = "absent";
};
enum class algorithm { convolution_direct, deconvolution_direct };
enum class prop_kind { forward_training, forward_inference };
enum class scratchpad_mode { user };
enum class fpmath_mode { strict };

struct engine {
  enum class kind { cpu };
  engine() = default;
  engine(kind, size_t) {}
};
struct stream {
  explicit stream(const engine&) {}
  void* get() const { return nullptr; }
};
struct memory {
  using dims = std::vector<int64_t>;
  enum class data_type { f32, bf16, f16, s8, u8, s32 };
  enum class format_tag { any };
  struct desc {
    desc() = default;
    desc(const dims& sizes, data_type type, const dims&) : sizes_(sizes), type_(type) {}
    desc(const dims& sizes, data_type type, format_tag) : sizes_(sizes), type_(type) {}
    const dims& get_dims() const { return sizes_; }
    data_type get_data_type() const { return type_; }
    size_t get_size() const { return 0; }
    bool operator==(const desc&) const = default;

   private:
    dims sizes_;
    data_type type_ = data_type::f32;
  };
  memory(const desc&, const engine&, void*) {}
  void* get() const { return nullptr; }
};
struct primitive_attr {
  void set_scratchpad_mode(scratchpad_mode) {}
  void set_fpmath_mode(fpmath_mode) {}
};
struct primitive {
  explicit operator bool() const { return false; }
  const void* get() const { return nullptr; }
};

// Each kind of primitive, all of which are refused.
template <int> struct kind_of_primitive : primitive {
  struct primitive_desc {
    template <class... Arguments> explicit primitive_desc(const Arguments&...) { throw error(); }
    const char* impl_info_str() const { return ""; }
    bool next_impl() { return false; }
    memory::desc src_desc() const { return {}; }
    memory::desc weights_desc() const { return {}; }
    memory::desc dst_desc() const { return {}; }
    memory::desc diff_src_desc() const { return {}; }
    memory::desc diff_weights_desc() const { return {}; }
    memory::desc diff_dst_desc() const { return {}; }
    memory::desc scratchpad_desc() const { return {}; }
    primitive_desc(const primitive_desc&) = default;
    primitive_desc(primitive_desc&) = default;
  };
  explicit kind_of_primitive(const primitive_desc&) {}
};
using matmul = kind_of_primitive<0>;
using reorder = kind_of_primitive<1>;
using convolution_forward = kind_of_primitive<2>;
using convolution_backward_data = kind_of_primitive<3>;
using convolution_backward_weights = kind_of_primitive<4>;
using deconvolution_forward = kind_of_primitive<5>;
using deconvolution_backward_data = kind_of_primitive<6>;
using deconvolution_backward_weights = kind_of_primitive<7>;

}  // namespace dnnl
