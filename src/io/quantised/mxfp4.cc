#include "io/quantised/mxfp4.h"

#include "arch/model_weights.h"
#include "io/rows/stored_rows.h"

namespace fidelio::quantised {
namespace {

// Finds the tensors of an expert's matrix, with a row for each row of the matrix that the file keeps together.
struct Mxfp4Rows {
  StoredRows codes, scales;
  Shape shape;  // of the linear
};

Mxfp4Rows find_mxfp4(const TensorFiles& files, const ModelConfig& model, LinearId id) {
  const FusedName name = fused_name(model, id);
  const Shape shape = shape_of(model, id);
  check(shape[1] % 32 == 0, "{} has {} columns, and MXFP4 has blocks of 32", to_string(id), shape[1]);
  const int64_t blocks = shape[1] / 32, each = name.rows / model.experts;
  const auto rows = [&](const char* suffix, const Shape& stored, int64_t bytes) {
    OwnedTensor all = files.get(stored_name(files, name.weight + suffix), DType::u8, stored);
    all.view.shape = {name.rows, bytes};
    return StoredRows{std::move(all), name.runs};
  };
  return {rows("_blocks", {model.experts, each, blocks, 16}, blocks * 16),
          rows("_scales", {model.experts, each, blocks}, blocks), shape};
}

LinearWeight read_linear(const Mxfp4Rows& rows) {
  const FormatSpec spec{.kind = Kind::mxfp4, .bits = 4, .group = 32};
  return load_weight(spec, rows.shape[0], rows.shape[1], [&](const std::string& suffix, DType, const Shape& shape) {
    if (suffix == ".bias") return OwnedTensor{};  // Biases have tensors of their own.
    return rows_of(suffix == ".scale" ? rows.scales : rows.codes, shape);
  });
}

}  // namespace

void read_mxfp4(ModelSource& source, const ModelConfig& model, const std::string& where) {
  const TensorFiles& files = *source.tensors;
  for (LinearId id : linears_of(model)) {
    const std::string weight = fused_name(model, id).weight;
    if (weight.empty() || !files.contains(stored_name(files, weight + "_blocks"))) continue;
    const Mxfp4Rows rows = find_mxfp4(files, model, id);
    source.linears[id] = {{.kind = Kind::mxfp4, .bits = 4, .group = 32}, [rows] { return read_linear(rows); }};
  }
  check(!source.linears.empty(), "{}: \"quantization_config\" says mxfp4, but no linear has tensors of it", where);
}

}  // namespace fidelio::quantised
