// A linear in vector codes as something that is tuned: latents, scales, the codebook where the file has one, and the
// corrections (train/vectors.h). matrix.h has it beside the other formats.
#pragma once
#include "train/host/rounding.h"
#include "train/parameter.h"
#include "train/tune/vector_latents.h"

namespace fidelio::train {

template <class D>
class VectorMatrix {
 public:
  using Real = typename D::Real;
  using Array = std::shared_ptr<Real[]>;

  VectorMatrix(D& device, const std::string& name, const LinearWeight& start, std::span<const float> source)
      : device_(device), spec_(start.spec), start_(vector_latents(start, source)), sizes_(start_.sizes) {
    latent_.emplace(device, name + ".codes", Share::codes, start_.latent);
    latent_->unit_all = start_.cell;
    add(row_, name + ".row_scale", Share::scales, start_.row);
    add(column_, name + ".column_scale", Share::scales, start_.column);
    if (!spec_.shared) add(book_, name + ".codebook", Share::grid, start_.codebook);  // the model's stays as it is
    if (sizes_.corrections > 0) {
      add(correction_, name + ".corrections", Share::dense, start_.correction);
      correction_->count_in_rms(start_.correction);
    }
    levels_ = loaded(start_.codebook), code_ = loaded(start_.code), neighbours_ = loaded(start_.neighbours);
    of_row_ = loaded(start_.book), place_ = loaded(start_.place);
    weight_ = device.allocate(sizes_.out * sizes_.in);
    decode();
  }

  const Real* weight() const { return weight_.get(); }
  Real* weight_gradient() const { return latent_->gradient.get(); }

  void decode() {
    if (book_) {
      std::vector<float> levels = downloaded(*book_);
      for (float& x : levels) x = nearest(within(x, -127, 127));
      device_.upload(levels, levels_.get());
    }
    device_.decode(sizes_, view(), weight_.get());
  }
  void backward() {
    device_.decode_backward(
        sizes_, view(),
        {latent_->gradient.get(), row_->gradient.get(), column_->gradient.get(),
         book_ ? book_->gradient.get() : nullptr, correction_ ? correction_->gradient.get() : nullptr});
  }

  LinearWeight encode() const {
    VectorLatents now = start_;
    now.row = downloaded(*row_), now.column = downloaded(*column_);
    now.code = downloaded(code_, now.code.size()), now.codebook = downloaded(levels_, now.codebook.size());
    if (correction_) now.correction = downloaded(*correction_);
    return vector_weight_of(spec_, now);
  }

  void parameters(const std::function<void(Parameter<D>&)>& f) {
    for (auto* p : {&latent_, &row_, &column_, &book_, &correction_})
      if (*p) f(**p);
  }

 private:
  void add(std::optional<Parameter<D>>& to, std::string name, Share share, const std::vector<float>& start) {
    to.emplace(device_, std::move(name), share, start);
    if (share != Share::scales) return;
    to->count_in_shares(device_, start);
    to->pace = pace_of(share, 2);  // vector codes have about two bits a weight, and moved at that rate before
  }
  Array loaded(const std::vector<float>& values) {
    Array array = device_.allocate(std::max<int64_t>(1, static_cast<int64_t>(values.size())));
    device_.upload(values, array.get());
    return array;
  }
  std::vector<float> downloaded(const Array& from, size_t n) const {
    std::vector<float> values(n);
    device_.download(from.get(), std::span<float>(values));
    return values;
  }
  std::vector<float> downloaded(const Parameter<D>& p) const { return downloaded(p.value, static_cast<size_t>(p.n)); }
  VectorView<Real> view() const {
    return {latent_->value.get(),
            levels_.get(),
            neighbours_.get(),
            of_row_.get(),
            row_->value.get(),
            column_->value.get(),
            correction_ ? correction_->value.get() : nullptr,
            place_.get(),
            code_.get()};
  }

  D& device_;
  FormatSpec spec_;
  VectorLatents start_;
  VectorSizes sizes_;
  std::optional<Parameter<D>> latent_, row_, column_, book_, correction_;
  Array levels_, code_, neighbours_, of_row_, place_, weight_;
};

}  // namespace fidelio::train
