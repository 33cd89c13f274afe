#include "request.h"

#include <cstring>

namespace maca_cuda {

namespace {

struct Named {
  Dtype dtype;
  const char* name;
};
constexpr Named kNames[] = {
    {Dtype::I8, "int8"},     {Dtype::I16, "int16"},   {Dtype::I32, "int32"},     {Dtype::I64, "int64"},
    {Dtype::U8, "uint8"},    {Dtype::F16, "float16"}, {Dtype::BF16, "bfloat16"}, {Dtype::F32, "float32"},
    {Dtype::F64, "float64"}, {Dtype::Bool, "bool"},
};

constexpr int kMostRank = 64;  // PyTorch's own limit

Operand read_operand(const maca_operand& raw, int slot, int scalar_count) {
  Operand o;
  o.slot = slot;
  if (raw.rank < 0) return o;
  if (raw.rank > kMostRank) throw Invalid("an operand has more than 64 dimensions");
  const int coded = (raw.dtype.code << 8) | raw.dtype.bits;
  for (const Named& n : kNames)
    if (static_cast<int>(n.dtype) == coded && raw.dtype.lanes == 1) o.dtype = n.dtype;
  if (o.dtype == Dtype::None)
    throw Declined("no kernel of the library takes the dtype of code " + std::to_string(raw.dtype.code) + ", " +
                   std::to_string(raw.dtype.bits) + " bits");
  o.scalar_slot = raw.scalar_slot;
  if (raw.scalar_slot >= scalar_count) throw Invalid("an operand is a scalar that no launch brings");
  o.sizes.assign(raw.sizes, raw.sizes + raw.rank);
  o.strides.assign(raw.strides, raw.strides + raw.rank);
  for (int d = 0; d < raw.rank; ++d)
    if (raw.sizes[d] < 0 || raw.strides[d] < 0) throw Invalid("an operand has a negative size or stride");
  return o;
}

}  // namespace

std::string name_of(Dtype d) {
  for (const Named& n : kNames)
    if (n.dtype == d) return n.name;
  return "none";
}

int64_t Operand::numel() const {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

Request::Request(const maca_plan_request& raw, maca_device& device)
    : device_(device),
      flags_(raw.flags),
      scalar_count_(raw.scalar_count),
      kernel_(raw.kernel),
      attributes_(raw.attributes),
      attribute_count_(raw.attribute_count) {
  for (int i = 0; i < raw.argument_count; ++i) {
    const maca_argument& a = raw.arguments[i];
    std::vector<Operand> members;
    if (a.kind == MACA_ARGUMENT_ABSENT) {
      members.resize(1);
      members[0].slot = operand_count_++;
    } else if (a.kind == MACA_ARGUMENT_TENSOR && a.count != 1) {
      throw Invalid("a tensor argument has not one operand");
    } else {
      for (int k = 0; k < a.count; ++k) members.push_back(read_operand(a.operands[k], operand_count_++, scalar_count_));
    }
    (a.is_output ? outputs_ : inputs_).push_back(std::move(members));
  }
}

const std::vector<Operand>& Request::in_list(int i) const {
  if (i >= inputs()) throw Invalid("the request lacks tensor argument " + std::to_string(i));
  return inputs_[static_cast<size_t>(i)];
}
const std::vector<Operand>& Request::out_list(int i) const {
  if (i >= outputs()) throw Invalid("the request lacks result " + std::to_string(i));
  return outputs_[static_cast<size_t>(i)];
}
const Operand& Request::in(int i) const {
  if (in_list(i).size() != 1) throw Invalid("argument " + std::to_string(i) + " is a list of tensors");
  return in_list(i)[0];
}
const Operand& Request::memory(int i) const {
  const Operand& o = in(i);
  if (!o.present()) throw Invalid("tensor argument " + std::to_string(i) + " is missing");
  if (o.scalar()) throw Declined("a number in place of tensor " + std::to_string(i));
  return o;
}
const Operand& Request::out(int i) const {
  if (out_list(i).size() != 1) throw Invalid("result " + std::to_string(i) + " is a list of tensors");
  const Operand& o = out_list(i)[0];
  if (o.scalar()) throw Invalid("a result is memory");
  return o;
}

const maca_attribute* Request::find(const std::string& name) const {
  for (int32_t i = 0; i < attribute_count_; ++i)
    if (attributes_[i].name && name == attributes_[i].name) return &attributes_[i];
  return nullptr;
}

int64_t Request::integer(const std::string& name, std::optional<int64_t> otherwise) const {
  const maca_attribute* a = find(name);
  if (!a && otherwise) return *otherwise;
  if (!a) throw Invalid("the request lacks the attribute " + name);
  if (a->kind == MACA_ATTRIBUTE_INT || a->kind == MACA_ATTRIBUTE_BOOL) return a->integer;
  throw Invalid("the attribute " + name + " is no integer");
}
double Request::number(const std::string& name, std::optional<double> otherwise) const {
  const maca_attribute* a = find(name);
  if (!a && otherwise) return *otherwise;
  return a && a->kind == MACA_ATTRIBUTE_FLOAT ? a->real : static_cast<double>(integer(name));
}
bool Request::boolean(const std::string& name, std::optional<bool> otherwise) const {
  return has(name) || !otherwise ? integer(name) != 0 : *otherwise;
}
std::string Request::text(const std::string& name, std::optional<std::string> otherwise) const {
  const maca_attribute* a = find(name);
  if (!a && otherwise) return *otherwise;
  if (!a) throw Invalid("the request lacks the attribute " + name);
  if (a->kind != MACA_ATTRIBUTE_STRING || !a->text) throw Invalid("the attribute " + name + " is no text");
  return a->text;
}
Dims Request::integers(const std::string& name, std::optional<Dims> otherwise) const {
  const maca_attribute* a = find(name);
  if (!a && otherwise) return *otherwise;
  if (!a) throw Invalid("the request lacks the attribute " + name);
  if (a->kind == MACA_ATTRIBUTE_INT) return {a->integer};
  if ((a->kind != MACA_ATTRIBUTE_INTS && a->kind != MACA_ATTRIBUTE_BOOLS) || a->count < 0)
    throw Invalid("the attribute " + name + " is no list of integers");
  return a->count ? Dims(a->ints, a->ints + a->count) : Dims();
}
int Request::scalar(const std::string& name) const {
  const int64_t slot = integer(name + ".scalar", -1);
  if (slot >= scalar_count_ || slot < -1) throw Invalid("the scalar " + name + " comes with no launch");
  return static_cast<int>(slot);
}
Dtype Request::common_dtype() const {
  const std::string name = text("common_dtype", "");
  if (name.empty()) throw Invalid("the request lacks the attribute common_dtype");
  for (const Named& n : kNames)
    if (name == n.name) return n.dtype;
  throw Declined("no kernel of the library computes in " + name);
}

}  // namespace maca_cuda
