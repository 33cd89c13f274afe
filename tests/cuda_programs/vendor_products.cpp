// Stands in for cuBLAS on the emulated device: what the CUDA library calls of cublasLt, computed by plain loops in
// double and rounded once, as work of the stream. It is as strict as the vendor's: layouts that overlap, matrices that
// do not fit, addresses less aligned than the algorithm was asked for, and a missing workspace are refused. The file
// STAND_IN_LOG gets a line a product.
#include "vendor_stand_in.h"

using namespace stand_in;

namespace {

constexpr int kSuccess = 0, kInvalid = 7, kNotSupported = 15;
constexpr size_t kWorkspaceBytes = 1024;

struct Product {
  int compute, scale;
  int32_t transposes_a, transposes_b;
  uint32_t epilogue;
  const void* bias;
};
struct Layout {
  int type;
  int64_t rows, columns, leading;
  int32_t batches;
  int64_t offset;
};
struct Preference {
  uint64_t workspace;
  uint32_t reductions, alignments[4];
};
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

Type type_of(int data_type) {
  return data_type == 0 ? Type::Float : data_type == 1 ? Type::Double : data_type == 2 ? Type::Half : Type::Bfloat16;
}

template <class T> int set(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return kInvalid;
  std::memcpy(&to, value, bytes);
  return kSuccess;
}

bool fits(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  for (const Layout* l : {&a, &b, &c, &d})
    if (l->leading < l->rows || l->rows < 1 || l->columns < 1 || l->batches != d.batches || l->type != d.type)
      return false;
  const int64_t m = p.transposes_a ? a.columns : a.rows, k = p.transposes_a ? a.rows : a.columns;
  const int64_t n = p.transposes_b ? b.rows : b.columns, of_b = p.transposes_b ? b.columns : b.rows;
  const int scale = d.type == 1 ? 1 : 0;
  const bool computes = d.type == 1 ? p.compute == 70 : p.compute == 68 || (p.compute == 77 && d.type == 0);
  return computes && p.scale == scale && k == of_b && m == d.rows && n == d.columns && c.rows == m && c.columns == n;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130203; }
const char* cublasLtGetStatusName(int status) {
  return status == kInvalid ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
int cublasLtCreate(void** handle) {
  static int one;
  *handle = &one;
  return kSuccess;
}

int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  *made = new Product{compute, scale, 0, 0, 1, nullptr};
  return kSuccess;
}
int cublasLtMatmulDescDestroy(void* p) {
  delete static_cast<Product*>(p);
  return kSuccess;
}
int cublasLtMatmulDescSetAttribute(void* of, int attribute, const void* value, size_t bytes) {
  auto& p = *static_cast<Product*>(of);
  if (attribute == 3) return set(p.transposes_a, value, bytes);
  if (attribute == 4) return set(p.transposes_b, value, bytes);
  if (attribute == 7) return set(p.epilogue, value, bytes);
  if (attribute == 8) return set(p.bias, value, bytes);
  return kInvalid;
}
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *made = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading, 1, 0};
  return kSuccess;
}
int cublasLtMatrixLayoutDestroy(void* l) {
  delete static_cast<Layout*>(l);
  return kSuccess;
}
int cublasLtMatrixLayoutSetAttribute(void* of, int attribute, const void* value, size_t bytes) {
  auto& l = *static_cast<Layout*>(of);
  if (attribute == 5) return set(l.batches, value, bytes);
  if (attribute == 6) return set(l.offset, value, bytes);
  return kInvalid;
}
int cublasLtMatmulPreferenceCreate(void** made) {
  *made = new Preference{0, 7, {256, 256, 256, 256}};
  return kSuccess;
}
int cublasLtMatmulPreferenceDestroy(void* p) {
  delete static_cast<Preference*>(p);
  return kSuccess;
}
int cublasLtMatmulPreferenceSetAttribute(void* of, int attribute, const void* value, size_t bytes) {
  auto& p = *static_cast<Preference*>(of);
  if (attribute == 1) return set(p.workspace, value, bytes);
  if (attribute == 3) return set(p.reductions, value, bytes);
  if (attribute >= 5 && attribute <= 8) return set(p.alignments[attribute - 5], value, bytes);
  return kInvalid;
}

int cublasLtMatmulAlgoGetHeuristic(void*, void* product, void* a, void* b, void* c, void* d, void* preference,
                                   int wanted, Heuristic* to, int* found) {
  const auto& p = *static_cast<Product*>(product);
  const auto& how = *static_cast<Preference*>(preference);
  *found = 0;
  if (!fits(p, *static_cast<Layout*>(a), *static_cast<Layout*>(b), *static_cast<Layout*>(c), *static_cast<Layout*>(d)))
    return kNotSupported;
  if (wanted < 1 || how.workspace < kWorkspaceBytes || (p.epilogue == 4 && !p.bias)) return kInvalid;
  *to = {};
  to->algorithm.data[0] = how.alignments[0];
  to->workspace = kWorkspaceBytes;
  *found = 1;
  return kSuccess;
}

int cublasLtMatmul(void*, void* product, const void* alpha, const void* a, void* of_a, const void* b, void* of_b,
                   const void* beta, const void* c, void* of_c, void* d, void* of_d, const Algorithm* algorithm,
                   void* workspace, size_t workspace_bytes, void* stream) {
  const Product p = *static_cast<Product*>(product);
  const Layout la = *static_cast<Layout*>(of_a), lb = *static_cast<Layout*>(of_b), lc = *static_cast<Layout*>(of_c),
               ld = *static_cast<Layout*>(of_d);
  if (!fits(p, la, lb, lc, ld)) return kInvalid;
  for (const void* address : {a, b, c, static_cast<const void*>(d)})
    if (!address || !is_multiple(address, algorithm->data[0])) return kInvalid;
  if (!workspace || workspace_bytes < kWorkspaceBytes) return kInvalid;
  if (std::getenv("STAND_IN_FAILS")) return kNotSupported;
  const Type scale = type_of(p.scale), type = type_of(ld.type);
  const double one = read(alpha, scale, 0), other = read(beta, scale, 0);
  const int64_t terms = p.transposes_a ? la.rows : la.columns;
  note("type %d, %lld x %lld x %lld, %d batches, %c%c, %s, compute %d, alignment %d\n", ld.type,
       static_cast<long long>(ld.rows), static_cast<long long>(ld.columns), static_cast<long long>(terms), ld.batches,
       p.transposes_a ? 'T' : 'N', p.transposes_b ? 'T' : 'N',
       p.epilogue == 4 ? "bias"
       : other == 0    ? "alone"
       : c == d        ? "onto itself"
                       : "added",
       p.compute, static_cast<int>(algorithm->data[0]));
  return queue(stream, [=] {
    std::memset(plain(workspace), 0xff, workspace_bytes);
    for (int64_t batch = 0; batch < ld.batches; ++batch)
      for (int64_t column = 0; column < ld.columns; ++column)
        for (int64_t row = 0; row < ld.rows; ++row) {
          double total = 0;
          for (int64_t k = 0; k < terms; ++k) {
            const int64_t at_a = p.transposes_a ? k + row * la.leading : row + k * la.leading;
            const int64_t at_b = p.transposes_b ? column + k * lb.leading : k + column * lb.leading;
            total += read(a, type, batch * la.offset + at_a) * read(b, type, batch * lb.offset + at_b);
          }
          total *= one;
          if (other != 0) total += other * read(c, type, batch * lc.offset + row + column * lc.leading);
          if (p.epilogue == 4) total += read(p.bias, type, row);
          write(d, type, batch * ld.offset + row + column * ld.leading, total);
        }
  });
}

}  // extern "C"
