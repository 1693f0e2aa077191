// Checkpoint: a model folder opened for reading, whatever made it. A Hugging Face folder gives dense weights; a fidelio
// folder is one too (config.json, tokenizer files, model.safetensors) whose compressed linears are stored as the
// tensors of formats/linear_weight.h and whose safetensors metadata says which format each has and where it came from.
//
// Metadata keys (all strings): "format" = "pt"; "fidelio" = JSON
//   {"version", "formats": {"layers.0.q": "int4g128z", ...}, "provenance": {"source_sha256", "calibration_sha256",
//    "method", "seed", ...}, "weights_sha256", "tensors", "files"}
// Tensors of a compressed linear: "<Hugging Face module name>.plane0", ".plane1", ".scale", ".row_scale", ".zero",
// ".codebook"; its bias keeps its Hugging Face name. docs/formats.md draws the bytes.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "arch/model_config.h"
#include "arch/model_weights.h"
#include "arch/stops.h"
#include "arch/weight_names.h"
#include "formats/linear_weight.h"
#include "io/identity/identity.h"
#include "io/model_source.h"
#include "io/safetensors.h"

namespace fidelio {

class Checkpoint {
 public:
  // Checks that every tensor is there with its shape and dtype, so that nothing after this has to.
  static Checkpoint open(const std::string& path);  // anything that io/model_source.h reads
  static Checkpoint open(ModelSource source);

  const std::string& folder() const { return source_.texts.name(); }  // the path it was opened by
  const TextFiles& texts() const { return source_.texts; }            // config.json, tokenizer.json, ...
  const ModelConfig& config() const { return config_; }
  FormatSpec format(LinearId id) const;
  LinearWeight linear(LinearId id) const;                // views into the mapped file
  std::vector<float> norm(int layer, Norm which) const;  // what it multiplies by, whatever the family stores
  LinearWeight router(int layer) const;                  // (E, d), in F32
  // Of a model with kept columns: the input's column of each column that the stop's weights have (order_name()). Those
  // that are kept come last, twice.
  std::vector<int32_t> order(int layer, const Stop& stop) const;
  // A norm or bias, or any other tensor by its name in the file, or by the name it has in the file of the text model alone.
  OwnedTensor tensor(const std::string& name) const;
  void drop(LinearId id) const;  // the pages of this linear are not needed in memory any more
  const std::string& provenance() const { return provenance_; }  // JSON text, "{}" for a Hugging Face checkpoint
  int64_t file_bytes() const;                                    // of all safetensors files
  int64_t parameters() const;
  std::string sha256() const;  // of the safetensors files in name order
  // The identity of every tensor, whatever file it stands in, and of every file that decides an answer: read now, and as it was
  // when fidelio wrote the checkpoint ("" for any other). They differ if a byte has changed since (io/identity/identity.h).
  Hashes tensor_hashes() const;
  Hashes file_hashes() const;
  std::string weights_sha256() const;
  const WrittenIdentity& written() const { return written_; }
  const std::string& written_weights_sha256() const { return written_.weights_sha256; }
  // Who quantised it before ("GGUF", "gptq", ...; "" if nobody but us did), and a line for each thing that its files may
  // not let expect: what of them had to be decoded, where its context ends.
  const std::string& quantised_by() const { return source_.quantised_by; }
  const std::vector<std::string>& notes() const { return source_.notes; }

 private:
  explicit Checkpoint(ModelSource source) : source_(std::move(source)) {}
  OwnedTensor bias(LinearId id) const;
  void check_kept_columns() const;
  std::string stored_name(const std::string& name) const;
  OwnedTensor dense(LinearId id) const;  // its rows, where a matrix holds those of several
  ModelSource source_;
  ModelConfig config_;
  std::map<LinearId, FormatSpec> formats_;
  std::string provenance_ = "{}";
  WrittenIdentity written_;
};

// Gives what a checkpoint's provenance says of the model it is made of: "source", the name of its folder or file
// without the way there, "source_sha256" and "source_file_bytes".
nlohmann::json about_source(const Checkpoint& source);

// Throws Error for a model of quantize --atom, whose weights have columns in an order of their own and some of them twice:
// it runs, and nothing else is made of it.
void check_columns_once(const Checkpoint& checkpoint);

// Writes a fidelio checkpoint: weights as asked for one by one (so that only one need be in memory; each twice, as
// their hash stands before them in the file), norms and biases from `source`, config and tokenizer files copied. Every
// linear has a tensor of its own there, also where the source keeps several as one; of a model that sees images it is
// the text model. The folder appears complete or not at all.
void write_checkpoint(const std::string& folder, const Checkpoint& source,
                      const std::map<LinearId, FormatSpec>& formats,
                      const std::function<LinearWeight(LinearId)>& weight, const nlohmann::json& provenance);

// Copies what stands beside config.json and the weights: tokenizer, chat template, generation defaults. Throws Error for
// a link out of the folder, or, in a Hugging Face cache (models--NAME/snapshots/REVISION), out of models--NAME.
void copy_companions(const TextFiles& from, const std::string& to_folder);

}  // namespace fidelio
