// The graph interface of the stand-in for cuDNN: descriptors are what was set in them, checked when they are finalized.
// Of four engines the first is a transform, the second takes too much memory, the third is for tensor cores and the
// last is always right. Included by vendor_convolutions.cpp, behind run().
#pragma once
#include <map>

namespace graphs {
namespace {

enum Kind {
  kConvolution = 1,
  kEngine,
  kConfiguration,
  kHeuristics,
  kPlan,
  kForward = 10,
  kBackwardFilter,
  kBackwardData,
  kGraph = 15,
  kPack,
  kTensor
};
constexpr int64_t kEngines = 4, kTooMuch = int64_t{1} << 40;

struct Described {
  int kind = 0;
  bool is_final = false;
  int64_t engine = -1;
  Described* graph = nullptr;
  std::map<int, std::vector<char>> values;

  template <class T> T value(int attribute, size_t i = 0) const {
    T value{};
    const auto found = values.find(attribute);
    if (found != values.end() && found->second.size() >= (i + 1) * sizeof value)
      std::memcpy(&value, found->second.data() + i * sizeof value, sizeof value);
    return value;
  }
  Ints list(int attribute) const {
    Ints list;
    const auto found = values.find(attribute);
    if (found == values.end()) return list;
    for (size_t i = 0; i < found->second.size() / sizeof(int64_t); ++i) list.push_back(value<int64_t>(attribute, i));
    return list;
  }
  const Described* other(int attribute) const { return value<Described*>(attribute); }
};
Described& at(void* d) { return *static_cast<Described*>(d); }
size_t size_of(int type) {
  switch (type) {
    case 0:
    case 3:
    case 5:
    case 6:
    case 15: return 8;
    case 1:
    case 4:
    case 7:
    case 8:
    case 11: return 4;
    default: return 0;
  }
}

struct Operation {
  Image x, y;
  Weight w;
  Convolution c;
  int64_t names[3];
  bool is_right = false;
};
Operation operation_of(const Described& d) {
  Operation o;
  const int first = d.kind == kForward ? 700 : d.kind == kBackwardData ? 706 : 712;
  const Described *c = d.other(first + 2), *w = d.other(first + 3), *x = d.other(first + 4), *y = d.other(first + 5);
  if (!c || !w || !x || !y || !c->is_final || !w->is_final || !x->is_final || !y->is_final) return o;
  o.c = {c->list(105), c->list(103), c->list(102), c->value<int>(101), c->value<int>(100), 1, 0};
  o.x = {x->value<int>(901), x->list(902), x->list(903)}, o.y = {y->value<int>(901), y->list(902), y->list(903)};
  o.w.type = w->value<int>(901), o.w.sizes = w->list(902);
  for (const int format : {1, 0}) {
    o.w.format = format;
    const Weight like{0, format, o.x.sizes};
    if (o.w.strides() == w->list(903) && (like.strides() == o.x.strides)) break;
  }
  if (o.w.strides() != w->list(903) || o.x.sizes.size() < 4 || o.w.sizes.size() != o.x.sizes.size()) return o;
  o.c.groups = static_cast<int>(o.x.sizes[1] / o.w.sizes[1]);
  const bool is_double = o.x.type == 1;
  const bool is_plain = is_double ? d.value<double>(first) == 1 && d.value<double>(first + 1) == 0
                                  : d.value<float>(first) == 1 && d.value<float>(first + 1) == 0;
  const size_t spatial = o.x.sizes.size() - 2;
  o.is_right = is_plain && c->list(104) == o.c.padding && c->list(106) == Ints{static_cast<int64_t>(spatial)} &&
               o.c.padding.size() == spatial && o.c.stride.size() == spatial && o.c.dilation.size() == spatial &&
               fits(o.x, o.w, o.c, o.y);
  const Described* tensors[] = {x, w, y};
  for (int i = 0; i < 3; ++i) {
    o.names[i] = tensors[i]->value<int64_t>(906);
    o.is_right = o.is_right && o.names[i] && tensors[i]->value<int64_t>(900) == 16;
  }
  return o;
}
bool is_whole(const Described& d) {
  switch (d.kind) {
    case kForward:
    case kBackwardData:
    case kBackwardFilter: return operation_of(d).is_right;
    case kGraph: return d.value<void*>(800) && d.other(801) && d.other(801)->is_final;
    case kHeuristics: return d.other(201) && d.other(201)->is_final && d.values.count(200);
    case kPlan: return d.value<void*>(400) && d.other(401) && d.other(401)->engine >= 0;
    case kPack: return d.list(1000).size() == 3 && d.list(1001).size() == 3 && d.values.count(1003);
    default: return true;
  }
}

}  // namespace
}  // namespace graphs

extern "C" {

int cudnnBackendCreateDescriptor(int kind, void** made) {
  if (std::getenv("STAND_IN_HAS_NO_GRAPHS")) return kNotSupported;
  auto* d = new graphs::Described;
  d->kind = kind, *made = d;
  return kSuccess;
}
int cudnnBackendDestroyDescriptor(void* d) { return destroy<graphs::Described>(d); }
int cudnnBackendSetAttribute(void* of, int attribute, int type, int64_t count, const void* values) {
  auto& d = graphs::at(of);
  const size_t bytes = graphs::size_of(type) * static_cast<size_t>(count);
  if (d.is_final || !bytes) return kBadParameter;
  const char* const from = static_cast<const char*>(values);
  d.values[attribute].assign(from, from + bytes);
  return kSuccess;
}
int cudnnBackendFinalize(void* of) {
  auto& d = graphs::at(of);
  if (d.is_final || !graphs::is_whole(d)) return kBadParameter;
  d.is_final = true;
  return kSuccess;
}
int cudnnBackendGetAttribute(void* of, int attribute, int, int64_t wanted, int64_t* count, void* to) {
  const auto& d = graphs::at(of);
  if (attribute == 202) {  // none but the better heuristics know engines
    *count = d.value<int>(200) == 3 ? graphs::kEngines : 0;
    for (int64_t i = 0; i < wanted && i < *count; ++i) {
      auto& configuration = graphs::at(static_cast<void**>(to)[i]);
      configuration.engine = i, configuration.graph = d.value<graphs::Described*>(201), configuration.is_final = true;
    }
  } else if (attribute == 300) {
    graphs::at(*static_cast<void**>(to)).engine = d.engine, *count = 1;
  } else if (attribute == 1303) {
    *count = d.engine == 0 || d.engine == 2;
    if (*count) *static_cast<int*>(to) = d.engine == 0 ? 5 : 0;
  } else if (attribute == 402) {
    *count = 1;
    *static_cast<int64_t*>(to) = d.other(401)->engine == 1 ? graphs::kTooMuch : static_cast<int64_t>(kWorkspaceBytes);
  } else {
    return kBadParameter;
  }
  return kSuccess;
}
int cudnnBackendExecute(void* handle, void* of_plan, void* of_pack) {
  const auto &plan = graphs::at(of_plan), &pack = graphs::at(of_pack);
  if (!plan.is_final || !pack.is_final) return kBadParameter;
  const graphs::Described *const configuration = plan.other(401), *const operation = configuration->graph->other(801);
  const graphs::Operation o = graphs::operation_of(*operation);
  void* places[3] = {};
  for (int i = 0; i < 3; ++i)
    for (size_t k = 0; k < 3; ++k)
      if (pack.value<int64_t>(1000, k) == o.names[i]) places[i] = pack.value<void*>(1001, k);
  if (!places[0] || !places[1] || !places[2] || configuration->engine < 2) return kBadParameter;
  const int kind = operation->kind;
  const char* const name = kind == graphs::kForward        ? "forward"
                           : kind == graphs::kBackwardData ? "backward data"
                                                           : "backward filter";
  void* const to = kind == graphs::kForward ? places[2] : kind == graphs::kBackwardData ? places[0] : places[1];
  return run(handle, name, o.x, places[0], o.w, places[1], o.c, o.y, places[2], to, pack.value<void*>(1003),
             kWorkspaceBytes, "engine", static_cast<int>(configuration->engine));
}

}  // extern "C"
