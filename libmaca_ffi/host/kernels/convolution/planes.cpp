// Convolutions of single pixels of float32 images that lie in planes (NCHW), or one side of which does: a product of
// matrices for each image, of the numbers as they lie. In channels-last, which the other ways compute in, two copies
// of every image stand around it, and take as long.
#include "convolution.h"

namespace maca::convolution {

using matmul::Matrix;
using matmul::Problem;
using onednn::at;

namespace {

constexpr int64_t kFewestPixels = 16;  // that fill the columns of a panel

// Channels by pixels, for each image; nullopt where the pixels of an image do not lie at one distance.
std::optional<Matrix> of_images(const Operand& image) {
  const auto &n = image.sizes, &s = image.strides;
  int64_t step = 0, pixels = 1;
  for (size_t d = n.size(); d-- > 2;) {
    if (n[d] == 1) continue;
    if (pixels == 1)
      step = s[d];
    else if (s[d] != step * pixels)
      return {};
    pixels *= n[d];
  }
  if (pixels == 1) step = 1;
  const Matrix m{Dtype::F32, -1, n[0], n[1], pixels, s[0], s[1], step};
  return m.blas() ? std::optional(m) : std::nullopt;
}

bool in_planes(const Matrix& m) { return m.columns > 1 && m.column_stride == 1 && m.rows > 1; }

Matrix in_slot(Matrix m, int slot) {
  m.slot = slot;
  return m;
}

}  // namespace

std::unique_ptr<Planes> Planes::make(const Geometry& g, Columns::Pass pass, const Operand& image, const Operand& weight,
                                     const Operand& result, const Operand& bias, bool asked) {
  if (image.dtype != Dtype::F32 || !of_single_pixels(g)) return nullptr;
  const auto x = of_images(image), y = of_images(result);
  if (!x || !y || (!asked && (!(in_planes(*x) || in_planes(*y)) || x->columns < kFewestPixels))) return nullptr;
  const Matrix w{Dtype::F32, kLeft, g.batch, g.out_channels, g.in_channels, 0, weight.strides[0], weight.strides[1]};
  std::unique_ptr<Planes> planes(new Planes());
  planes->slots_ = {weight.slot, image.slot, result.slot, bias.slot};
  Problem p;
  switch (pass) {
    case Columns::Pass::Forward:
      p.a = w;
      p.b = in_slot(*x, kRight);
      p.out = in_slot(*y, kResult);
      if (bias.present())
        p.self = Matrix{Dtype::F32, kBias, g.batch, g.out_channels, x->columns, 0, bias.strides[0], 0};
      break;
    case Columns::Pass::InputGradient:
      planes->slots_ = {weight.slot, result.slot, image.slot, -1};
      p.a = w.transposed();
      p.b = in_slot(*y, kRight);
      p.out = in_slot(*x, kResult);
      break;
    case Columns::Pass::WeightGradient: {
      // A product an image, and their sum. Where those are larger than the images, copies of these are the less.
      const int64_t each = g.out_channels * g.in_channels;
      if (!asked && each > x->columns * (g.out_channels + g.in_channels)) return nullptr;
      planes->slots_ = {result.slot, image.slot, weight.slot, -1};
      p.a = in_slot(*y, kLeft);
      p.b = in_slot(*x, kRight).transposed();
      p.out = {Dtype::F32, kResult, g.batch, g.out_channels, g.in_channels, each, g.in_channels, 1};
      planes->sum_ = weight.strides;
      break;
    }
  }
  if (!p.out.row_major()) p = p.transposed();
  planes->product_ = matmul::panels_plan(p);
  if (!planes->product_) return nullptr;
  planes->out_ = p.out;
  onednn::Workspace space;
  if (!planes->sum_.empty()) planes->products_ = space.take(static_cast<uint64_t>(p.out.numel()) * 4);
  planes->product_space_ = space.take(planes->product_->workspace_bytes);
  planes->workspace_bytes_ = space.bytes();
  return planes;
}

void Planes::run(const Launch& launch, void* workspace) const {
  void* pointers[4];
  for (size_t i = 0; i < 4; ++i) pointers[i] = slots_[i] < 0 ? nullptr : launch.data(slots_[i]);
  void* result = pointers[kResult];
  if (!sum_.empty()) pointers[kResult] = at(workspace, products_);
  product_->run({pointers, nullptr, at(workspace, product_space_), nullptr, 0, 0});
  if (!sum_.empty()) add_up(static_cast<const float*>(pointers[kResult]), static_cast<float*>(result));
}

// The images' products, in order, whatever the number of threads.
void Planes::add_up(const float* products, float* result) const {
  const Matrix& m = out_;
  parallel_for(m.rows, std::max<int64_t>(1, 32768 / (m.columns * m.batch)), [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(m.columns));
    for (int64_t r = begin; r < end; ++r) {
      std::ranges::fill(sum, 0.0f);
      for (int64_t n = 0; n < m.batch; ++n) {
        const float* row = products + (n * m.rows + r) * m.columns;
        for (int64_t c = 0; c < m.columns; ++c) sum[static_cast<size_t>(c)] += row[c];
      }
      for (int64_t c = 0; c < m.columns; ++c) result[r * sum_[0] + c * sum_[1]] = sum[static_cast<size_t>(c)];
    }
  });
}

}  // namespace maca::convolution
