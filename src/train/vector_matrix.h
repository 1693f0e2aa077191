// A VectorMatrix is a linear in vector codes while it is tuned: latents, scales, its own codebook or the model's, and
// the corrections (train/vectors.h). matrix.h has it beside the other formats. SCVQ trains scales and corrections alone
// and leaves codes and codebook as they are; rates of 0 for these two keep them here, too.
#pragma once
#include "train/codebook.h"

namespace fidelio::train {

template <class D>
class VectorMatrix {
 public:
  using Real = typename D::Real;
  using Array = std::shared_ptr<Real[]>;

  // `shared` is the model's codebook, which its owner decodes, moves and saves. If it is null, this matrix has a
  // codebook of its own.
  VectorMatrix(D& device, const std::string& name, const LinearWeight& start, std::span<const float> source,
               std::shared_ptr<Codebook<D>> shared)
      : device_(device),
        name_(name),
        spec_(start.spec),
        owns_book_(shared == nullptr),
        book_(owns_book_ ? std::make_shared<Codebook<D>>(device, name + ".codebook", start) : std::move(shared)),
        start_(vector_latents(start, source, book_->near())),
        sizes_(start_.sizes) {
    latent_.emplace(device, name + ".codes", Share::codes, start_.latent);
    latent_->unit_all = book_->near().cell;
    add(row_, name + ".row_scale", Share::scales, start_.row);
    add(column_, name + ".column_scale", Share::scales, start_.column);
    if (sizes_.corrections > 0) {
      add(correction_, name + ".corrections", Share::dense, start_.correction);
      correction_->count_in_rms(start_.correction);
    }
    code_ = loaded(start_.code), of_row_ = loaded(start_.book), place_ = loaded(start_.place);
    start_.latent = {}, start_.neighbours = {};  // the device has these
    weight_ = device.allocate(sizes_.out * sizes_.in);
    decode();
  }

  const Real* weight() const { return weight_.get(); }
  Real* weight_gradient() const { return latent_->gradient.get(); }

  // Computes the values. If not `choose`, codes stay as they are, whatever is nearest to the latents.
  void decode(bool choose = true) {
    if (owns_book_) book_->decode();
    VectorView<Real> from = view();
    if (!choose) from.latent = nullptr;
    device_.decode(sizes_, from, weight_.get());
  }
  // Computes the gradients. With `shared`, the model's codebook gets its gradient too.
  void backward(bool shared) {
    device_.decode_backward(
        sizes_, view(),
        {latent_->gradient.get(), row_->gradient.get(), column_->gradient.get(),
         owns_book_ || shared ? book_->gradient() : nullptr, correction_ ? correction_->gradient.get() : nullptr});
  }

  LinearWeight encode() const {
    VectorLatents now = start_;
    now.row = downloaded(*row_), now.column = downloaded(*column_);
    now.code = downloaded(code_, now.code.size()), now.codebook = book_->encode();
    if (correction_) now.correction = downloaded(*correction_);
    return vector_weight_of(spec_, now);
  }

  void parameters(const std::function<void(Parameter<D>&)>& f) {
    f(*latent_), f(*row_), f(*column_);
    if (owns_book_) f(book_->parameter());
    if (correction_) f(*correction_);
  }
  // Calls f(name, values, count) with the codes that decode() chose. A new code is searched around the one before, so
  // codes do not follow from the parameters alone, and a run that is continued needs them too.
  void choices(const std::function<void(const std::string&, Real*, int64_t)>& f) {
    f(name_ + ".chosen", code_.get(), sizes_.out * sizes_.vectors);
  }

 private:
  void add(std::optional<Parameter<D>>& to, std::string name, Share share, const std::vector<float>& start) {
    to.emplace(device_, std::move(name), share, start);
    // Rates of .005, .0075 and .015 of a cell were tried on quill-26m, and .016 and .04 on quill-1m; the last was
    // best in each case.
    if (share == Share::codes) to->pace = 10;
    if (share != Share::scales) return;
    to->count_in_shares(device_, start);
    to->pace = pace_of(share, 2);  // vector codes have about two bits a weight, and scales moved at that rate before
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
            book_->levels(),
            book_->neighbours(),
            of_row_.get(),
            row_->value.get(),
            column_->value.get(),
            correction_ ? correction_->value.get() : nullptr,
            place_.get(),
            code_.get()};
  }

  D& device_;
  std::string name_;
  FormatSpec spec_;
  bool owns_book_;
  std::shared_ptr<Codebook<D>> book_;
  VectorLatents start_;  // without latents and neighbours
  VectorSizes sizes_;
  std::optional<Parameter<D>> latent_, row_, column_, correction_;
  Array code_, of_row_, place_, weight_;
};

}  // namespace fidelio::train
