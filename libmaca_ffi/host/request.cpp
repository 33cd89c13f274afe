#include <algorithm>
#include <numeric>

#include "kernel.h"

namespace maca {

const char* dtype_name(Dtype d) {
  switch (d) {
    case Dtype::None: return "none";
    case Dtype::I8: return "int8";
    case Dtype::I16: return "int16";
    case Dtype::I32: return "int32";
    case Dtype::I64: return "int64";
    case Dtype::U8: return "uint8";
    case Dtype::U16: return "uint16";
    case Dtype::U32: return "uint32";
    case Dtype::U64: return "uint64";
    case Dtype::F16: return "float16";
    case Dtype::F32: return "float32";
    case Dtype::F64: return "float64";
    case Dtype::BF16: return "bfloat16";
    case Dtype::C32: return "complex32";
    case Dtype::C64: return "complex64";
    case Dtype::C128: return "complex128";
    case Dtype::Bool: return "bool";
  }
  return "unknown";
}

Dtype dtype_named(std::string_view name) {
  for (const Dtype d :
       {Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64, Dtype::U8, Dtype::U16, Dtype::U32, Dtype::U64, Dtype::F16,
        Dtype::F32, Dtype::F64, Dtype::BF16, Dtype::C32, Dtype::C64, Dtype::C128, Dtype::Bool})
    if (name == dtype_name(d)) return d;
  return Dtype::None;
}

int64_t Operand::numel() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

namespace {
// Do the dimensions, taken in `order` from the innermost, lie densely one in the other?
bool dense_in_order(const Operand& o, const std::vector<int>& order) {
  int64_t expected = 1;
  for (const int d : order) {
    const auto i = static_cast<size_t>(d);
    if (o.sizes[i] == 1) continue;
    if (o.strides[i] != expected) return false;
    expected *= o.sizes[i];
  }
  return true;
}
}  // namespace

bool Operand::contiguous() const {
  if (numel() == 0) return true;
  std::vector<int> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(order.size() - 1 - i);
  return dense_in_order(*this, order);
}

bool Operand::dense() const {
  if (numel() <= 1) return true;
  std::vector<int> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return strides[static_cast<size_t>(a)] < strides[static_cast<size_t>(b)]; });
  return dense_in_order(*this, order);
}

bool Operand::channels_last() const {
  if (rank() != 4 && rank() != 5) return false;
  if (numel() == 0) return false;
  return dense_in_order(*this, rank() == 4 ? std::vector<int>{1, 3, 2, 0} : std::vector<int>{1, 4, 3, 2, 0});
}

namespace {
Operand read_operand(const maca_operand& raw, int slot) {
  Operand o;
  o.slot = slot;
  if (raw.rank < 0) return o;
  o.dtype = dtype_of(raw.dtype);
  o.scalar_slot = raw.scalar_slot;
  o.sizes.assign(raw.sizes, raw.sizes + raw.rank);
  o.strides.assign(raw.strides, raw.strides + raw.rank);
  for (const int64_t n : o.sizes)
    if (n < 0) throw Invalid("an operand has a negative extent");
  return o;
}
}  // namespace

Request::Request(const maca_plan_request& raw)
    : kernel_(raw.kernel),
      flags_(raw.flags),
      scalar_count_(raw.scalar_count),
      attributes_(raw.attributes, static_cast<size_t>(raw.attribute_count)) {
  for (int i = 0; i < raw.argument_count; ++i) {
    const maca_argument& argument = raw.arguments[i];
    std::vector<Operand> operands;
    if (argument.kind == MACA_ARGUMENT_ABSENT) {
      operands.emplace_back().slot = operand_count_++;
    } else {
      for (int j = 0; j < argument.count; ++j) operands.push_back(read_operand(argument.operands[j], operand_count_++));
    }
    (argument.is_output ? outputs_ : inputs_).push_back(std::move(operands));
  }
}

static const Operand& single(const std::vector<std::vector<Operand>>& list, int i, const char* what) {
  if (i < 0 || static_cast<size_t>(i) >= list.size() || list[static_cast<size_t>(i)].size() != 1)
    throw Invalid(std::string("the request lacks ") + what + " " + std::to_string(i));
  return list[static_cast<size_t>(i)][0];
}
const Operand& Request::in(int i) const { return single(inputs_, i, "tensor argument"); }
const Operand& Request::out(int i) const { return single(outputs_, i, "result"); }
std::span<const Operand> Request::in_list(int i) const { return inputs_.at(static_cast<size_t>(i)); }
std::span<const Operand> Request::out_list(int i) const { return outputs_.at(static_cast<size_t>(i)); }

std::vector<std::pair<std::string, maca_attribute>> Request::attributes_of(std::string_view prefix) const {
  std::vector<std::pair<std::string, maca_attribute>> found;
  for (const maca_attribute& a : attributes_)
    if (std::string_view(a.name).starts_with(prefix)) found.emplace_back(a.name + prefix.size(), a);
  return found;
}

const maca_attribute* Request::find(std::string_view name) const {
  for (const maca_attribute& a : attributes_)
    if (name == a.name) return &a;
  return nullptr;
}

bool Request::has(std::string_view name) const { return find(name) != nullptr; }

namespace {
template <class T> T needed(std::string_view name, const std::optional<T>& otherwise) {
  if (otherwise) return *otherwise;
  throw Invalid("the request lacks the attribute " + std::string(name));
}
}  // namespace

int64_t Request::integer(std::string_view name, std::optional<int64_t> otherwise) const {
  const auto* a = find(name);
  if (!a) return needed(name, otherwise);
  return a->kind == MACA_ATTRIBUTE_FLOAT ? static_cast<int64_t>(a->real) : a->integer;
}
double Request::number(std::string_view name, std::optional<double> otherwise) const {
  const auto* a = find(name);
  if (!a) return needed(name, otherwise);
  return a->kind == MACA_ATTRIBUTE_FLOAT ? a->real : static_cast<double>(a->integer);
}
bool Request::boolean(std::string_view name, std::optional<bool> otherwise) const {
  const auto* a = find(name);
  return a ? a->integer != 0 : needed(name, otherwise);
}
std::string Request::text(std::string_view name, std::optional<std::string> otherwise) const {
  const auto* a = find(name);
  return a ? std::string(a->text) : needed(name, otherwise);
}
std::vector<int64_t> Request::integers(std::string_view name, std::optional<std::vector<int64_t>> otherwise) const {
  const auto* a = find(name);
  if (!a) return needed(name, otherwise);
  if (a->kind == MACA_ATTRIBUTE_INT) return {a->integer};
  return {a->ints, a->ints + a->count};
}
std::vector<double> Request::numbers(std::string_view name, std::optional<std::vector<double>> otherwise) const {
  const auto* a = find(name);
  if (!a) return needed(name, otherwise);
  if (a->kind == MACA_ATTRIBUTE_INTS) return {a->ints, a->ints + a->count};
  return {a->doubles, a->doubles + a->count};
}

int64_t scalar_to_int(const maca_scalar& s) {
  return s.tag == MACA_SCALAR_INT || s.tag == MACA_SCALAR_BOOL ? s.value.integer : static_cast<int64_t>(s.value.real);
}
double scalar_to_double(const maca_scalar& s) {
  return s.tag == MACA_SCALAR_INT || s.tag == MACA_SCALAR_BOOL ? static_cast<double>(s.value.integer) : s.value.real;
}
c128 scalar_to_complex(const maca_scalar& s) {
  return {scalar_to_double(s), s.tag == MACA_SCALAR_COMPLEX ? s.imaginary : 0.0};
}

}  // namespace maca
