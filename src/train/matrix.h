// A Matrix is a linear of a checkpoint while it is tuned: dense values, or codes with their scales, zero points and
// grids (codes.h). Products use what the file would hold. decode() must be called before a forward pass and
// backward() after it.
#pragma once
#include <optional>

#include "formats/grid_curve.h"
#include "train/block.h"
#include "train/parameter.h"
#include "train/tune/levels.h"
#include "train/vector_matrix.h"

namespace fidelio::train {

template <class D>
class Matrix {
 public:
  using Real = typename D::Real;
  using Array = std::shared_ptr<Real[]>;

  // `source` (out, in) holds the values that were quantised. They say where in its cell every code starts, at most
  // `most` from the middle. It may be empty. `shared` is the codebook that others of this format read too, if there
  // is one.
  Matrix(D& device, const std::string& name, const LinearWeight& start, std::span<const float> source,
         float most = 0.45f, std::shared_ptr<Codebook<D>> shared = nullptr)
      : device_(device), spec_(start.spec), out_(start.out), in_(start.in) {
    if (spec_.is_dense()) {
      const DType stored = std::get<Dense>(start.main).w.view.dtype;
      dense_.emplace(device, name + ".weight", stored, Shape{out_, in_}, fidelio::decode(start));
      return;
    }
    if (spec_.kind == Kind::vq) {
      vectors_.emplace(device, name, start, source, std::move(shared));
      return;
    }
    table_ = level_table(start);
    const GroupValues groups = group_values(start);
    codes_.emplace(device, name + ".codes", Share::codes, start_positions(start, table_, groups, source, most));
    sizes_ = {out_, in_, spec_.group_size(in_), spec_.groups(in_), static_cast<int>(table_.level.size())};
    add(group_scale_, name + ".scale", Share::scales, groups.group_scale);
    add(row_scale_, name + ".row_scale", Share::scales, groups.row_scale);
    add(zero_, name + ".zero", Share::zeros, groups.zero);
    add(offset_, name + ".offset", Share::scales, groups.group_offset);
    // Grids that are curves (formats/grid_curve.h) stay as they are. If their entries moved by themselves, they would
    // decode slowly on a GPU.
    if (spec_.kind == Kind::grid && !is_curve_width(spec_.bits)) add(grid_, name + ".grid", Share::grid, table_.level);
    level_ = device.allocate(sizes_.levels);
    device.upload(table_.level, level_.get());
    weight_ = device.allocate(out_ * in_);
    const int64_t n = out_ * sizes_.groups;
    scale_ = device.allocate(n), dscale_ = device.allocate(n);
    if (zero_) shift_ = device.allocate(n);
    if (offset_) stored_offset_ = device.allocate(n), doffset_ = device.allocate(n);
    decode();
  }

  LinearView<Real> view() const {
    LinearView<Real> v{.out = out_, .in = in_};
    if (vectors_) {
      v.weight = vectors_->weight(), v.weight_gradient = vectors_->weight_gradient();
      return v;
    }
    v.weight = dense_ ? dense_->weight() : weight_.get();
    v.weight_gradient = dense_ ? dense_->gradient() : codes_->gradient.get();
    return v;
  }

  bool is_dense() const { return dense_.has_value(); }

  // Computes the values from the parameters. If not `choose`, the codes of vectors stay (vector_matrix.h); all other
  // codes follow from the parameters anyway.
  void decode(bool choose = true) {
    if (dense_) return dense_->decode(device_);
    if (vectors_) return vectors_->decode(choose);
    if (grid_) device_.keep_ascending(grid_->value.get(), sizes_.levels, level_.get());
    device_.resolve(scales(), {scale_.get(), shift_.get(), stored_offset_.get()});
    device_.decode(sizes_, values(), weight_.get());
  }

  // Computes the gradients of all parameters from that of the weight, which is overwritten by the codes' gradient.
  // With `shared`, the gradient of a shared codebook is added to.
  void backward(bool shared = true) {
    if (dense_) return;
    if (vectors_) return vectors_->backward(shared);
    device_.decode_backward(sizes_, values(),
                            {codes_->gradient.get(), dscale_.get(), zero_ ? zero_->gradient.get() : nullptr,
                             doffset_.get(), grid_ ? grid_->gradient.get() : nullptr});
    device_.resolve_backward(
        scales(), {dscale_.get(), doffset_.get(), group_scale_ ? group_scale_->gradient.get() : nullptr,
                   row_scale_ ? row_scale_->gradient.get() : nullptr, offset_ ? offset_->gradient.get() : nullptr});
  }

  // Returns the weight as a checkpoint stores it. It must follow decode().
  LinearWeight encode() const {
    if (dense_) return make_dense(dense_->encode(device_));
    if (vectors_) return vectors_->encode();
    GroupValues groups;
    for (auto [parameter, to] : {std::pair{&group_scale_, &groups.group_scale},
                                 {&row_scale_, &groups.row_scale},
                                 {&zero_, &groups.zero},
                                 {&offset_, &groups.group_offset}})
      if (*parameter) *to = downloaded(**parameter);
    LevelTable table = table_;
    device_.download(level_.get(), table.level);
    return weight_of(spec_, out_, in_, table, downloaded(*codes_), groups);
  }

  void parameters(const std::function<void(Parameter<D>&)>& f) {
    if (dense_) return f(dense_->parameter());
    if (vectors_) return vectors_->parameters(f);
    for (auto* p : {&codes_, &group_scale_, &row_scale_, &zero_, &offset_, &grid_})
      if (*p) f(**p);
  }
  void choices(const std::function<void(const std::string&, Real*, int64_t)>& f) {
    if (vectors_) vectors_->choices(f);
  }

 private:
  void add(std::optional<Parameter<D>>& to, std::string name, Share share, const std::vector<float>& start) {
    if (start.empty()) return;
    to.emplace(device_, std::move(name), share, start);
    if (share == Share::scales) to->count_in_shares(device_, start);
    to->pace = pace_of(share, spec_.bits);
  }
  std::vector<float> downloaded(const Parameter<D>& p) const {
    std::vector<float> values(static_cast<size_t>(p.n));
    device_.download(p.value.get(), values);
    return values;
  }
  static const Real* value(const std::optional<Parameter<D>>& p) { return p ? p->value.get() : nullptr; }
  ScaleView<Real> scales() const {
    return {scale_rule(spec_), out_,         sizes_.groups, zero_ ? 1 << spec_.bits : 0, value(group_scale_),
            value(row_scale_), value(zero_), value(offset_)};
  }
  CodeView<Real> values() const {
    return {codes_->value.get(), level_.get(), scale_.get(), shift_.get(), stored_offset_.get()};
  }

  D& device_;
  FormatSpec spec_;
  int64_t out_, in_;
  CodeSizes sizes_;
  LevelTable table_;
  std::optional<DenseParameter<D>> dense_;
  std::optional<VectorMatrix<D>> vectors_;
  std::optional<Parameter<D>> codes_, group_scale_, row_scale_, zero_, offset_, grid_;
  Array level_, weight_, scale_, shift_, stored_offset_, dscale_, doffset_;
};

}  // namespace fidelio::train
