// Padding by reflection and by replication, with gradients.
#include "volume.h"

namespace maca_cuda {
namespace {

struct Axis {
  int64_t inputs = 1, outputs = 1, before = 0;
  bool reflects = false;
  __device__ int64_t source(int64_t o) const {
    const int64_t i = o - before;
    if (reflects) return i < 0 ? -i : i >= inputs ? 2 * (inputs - 1) - i : i;
    return i < 0 ? 0 : i >= inputs ? inputs - 1 : i;
  }
  template <class F> __device__ void taps(int64_t o, F&& f) const { f(source(o), 1.0); }
  // Elements within what is reflected, or at an end that is repeated, are taken from outside as well.
  __device__ void takers(int64_t i, int64_t& first, int64_t& last) const {
    const int64_t own = i + before, behind = outputs - inputs - before;
    const bool from_low = reflects ? i <= before : i == 0,
               from_high = reflects ? inputs - 1 - i <= behind : i == inputs - 1;
    first = from_low || own < 0 ? 0 : own < outputs ? own : outputs;
    last = from_high ? outputs : own + 1 < 0 ? 0 : own + 1 < outputs ? own + 1 : outputs;
  }
};
template <class Body>
void set_axes(const Request& r, const Volume& from, const Volume& to, int spatial, bool reflects, Body& body) {
  const Dims pad = r.integers("padding");
  if (pad.size() != 2 * static_cast<size_t>(spatial)) throw Invalid("padding has two numbers a spatial dimension");
  for (int d = 0; d < spatial; ++d) {
    const size_t at = static_cast<size_t>(3 - spatial + d), k = 2 * static_cast<size_t>(spatial - 1 - d);
    Axis& axis = body.axes[at];
    axis.inputs = from.sizes[at + 2], axis.outputs = to.sizes[at + 2], axis.before = pad[k], axis.reflects = reflects;
    if (axis.outputs != axis.inputs + pad[k] + pad[k + 1]) throw Invalid("the result's size is not the padded one");
    if (axis.outputs > 0 && (axis.inputs == 0 || (reflects && (pad[k] >= axis.inputs || pad[k + 1] >= axis.inputs))))
      throw Invalid("padding is larger than the input it reflects");
  }
}
std::unique_ptr<Plan> pad(const Request& r, int spatial, bool reflects) {
  const Operand in = r.memory(0), out = r.out();
  if (in.dtype != out.dtype) throw Invalid("the result is of another dtype");
  return with_compute(in.dtype, [&](auto c) {
    Gather<Axis, decltype(c)> body;
    body.in = Volume(in, spatial), body.out = Volume(out, spatial);
    set_axes(r, body.in, body.out, spatial, reflects, body);
    return make_volume_plan(body);
  });
}
std::unique_ptr<Plan> pad_backward(const Request& r, int spatial, bool reflects) {
  const Operand grad = r.memory(0), out = r.out();
  if (!is_floating(grad.dtype)) throw Declined("gradients that are integers");
  GatherGradient<Axis> body;
  body.in = Volume(grad, spatial), body.out = Volume(out, spatial);
  set_axes(r, body.out, body.in, spatial, reflects, body);
  return make_volume_plan(body);
}
#define MACA_PAD(NAME, SPATIAL, REFLECTS)                                        \
  MACA_KERNEL(NAME, [](const Request& r) { return pad(r, SPATIAL, REFLECTS); }); \
  MACA_KERNEL(NAME "_backward", [](const Request& r) { return pad_backward(r, SPATIAL, REFLECTS); })
MACA_PAD("reflection_pad1d", 1, true);
MACA_PAD("reflection_pad2d", 2, true);
MACA_PAD("reflection_pad3d", 3, true);
MACA_PAD("replication_pad1d", 1, false);
MACA_PAD("replication_pad2d", 2, false);
MACA_PAD("replication_pad3d", 3, false);

}  // namespace
}  // namespace maca_cuda
