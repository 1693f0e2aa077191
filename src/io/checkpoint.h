// This file defines Checkpoint, a model opened for reading, whatever program wrote it. A Hugging Face folder gives
// dense weights. A fidelio folder has the same files (config.json, tokenizer files, model.safetensors), but its
// compressed linears are stored as the tensors of formats/linear_weight.h. The metadata of its safetensors says which
// format each linear has and where it came from.
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
#include <mutex>
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
#include "io/rows/stored_rows.h"
#include "io/safetensors.h"

namespace fidelio {

class Checkpoint {
 public:
  // open() checks that every tensor exists with its shape and dtype, so no later call has to. It throws Error
  // otherwise.
  static Checkpoint open(const std::string& path);  // The path may be anything that io/model_source.h reads.
  static Checkpoint open(ModelSource source);

  const std::string& folder() const { return source_.texts.name(); }  // This is the path that it was opened by.
  const TextFiles& texts() const { return source_.texts; }  // These are config.json, tokenizer.json and so on.
  const ModelConfig& config() const { return config_; }
  FormatSpec format(LinearId id) const;
  LinearWeight linear(LinearId id) const;  // Its tensors are views into the mapped file.
  // These are the factors to multiply by, whatever the family stores.
  std::vector<float> norm(int layer, Norm which) const;
  std::vector<float> delta(int layer, DeltaTensor which) const;    // of a layer with a delta net
  LinearWeight router(int layer) const;                            // It is (E, d), in F32, with the bias of its logits.
  std::vector<float> router(int layer, RouterTensor which) const;  // (E), of a router that has it
  // Returns, for a model with kept columns, which column of the input each column of the weights at this stop (a group
  // of linears that read one input) uses (order_name()). The kept columns come last and occur twice.
  std::vector<int32_t> order(int layer, const Stop& stop) const;
  // Returns a norm, a bias or any other tensor by its name in the file, or by the name that it has in the file of the
  // text model alone.
  OwnedTensor tensor(const std::string& name) const;
  // Returns the bias of a linear that has one (has_bias), as the file has it.
  OwnedTensor bias_tensor(LinearId id) const;
  OwnedTensor linear_bias(LinearId id) const;  // The same in F32; it is empty where the linear has none.
  void drop(LinearId id) const;                // It says that the pages of this linear are no longer needed in memory.
  // Returns a JSON text, "{}" for a Hugging Face checkpoint.
  const std::string& provenance() const { return provenance_; }
  int64_t file_bytes() const;  // This is the size of all safetensors files.
  int64_t parameters() const;
  // Hashes the safetensors files in the order of their names, once: they have gigabytes.
  std::string sha256() const;
  // These return the hash of every tensor, whatever file holds it, and of every file that decides an answer. The first
  // three are computed now. The last two were noted when fidelio wrote the checkpoint, and are "" for other
  // checkpoints. They differ if a byte has changed since (io/identity/identity.h).
  Hashes tensor_hashes() const;
  Hashes file_hashes() const;
  std::string weights_sha256() const;
  const WrittenIdentity& written() const { return written_; }
  const std::string& written_weights_sha256() const { return written_.weights_sha256; }
  // quantised_by() returns the method that quantised the model before ("GGUF", "gptq", ...), or "" if only fidelio did.
  // notes() returns a line for each thing that users may not expect of the files: tensors that had to be decoded, or
  // where the context ends.
  const std::string& quantised_by() const { return source_.quantised_by; }
  const std::vector<std::string>& notes() const { return source_.notes; }

 private:
  explicit Checkpoint(ModelSource source) : source_(std::move(source)) {}
  void check_kept_columns() const;
  std::string stored_name(const std::string& name) const;
  std::vector<float> floats(const std::string& name, const Shape& expected) const;  // of a tensor of this shape
  StoredRows stored_rows(LinearId id) const;                                        // It checks the shape.
  OwnedTensor dense(LinearId id) const;
  ModelSource source_;
  struct Hashed {
    std::once_flag once;
    std::string sha256;
  };
  std::shared_ptr<Hashed> hashed_ = std::make_shared<Hashed>();
  ModelConfig config_;
  std::map<LinearId, FormatSpec> formats_;
  std::string provenance_ = "{}";
  WrittenIdentity written_;
};

// Returns what the provenance of a checkpoint says about the model it is made from: "source", the name of its folder or
// file without the path, "source_sha256" and "source_file_bytes".
nlohmann::json about_source(const Checkpoint& source);

// Throws Error for a model made by quantize --atom, whose weights have reordered columns, some of them twice. Such a
// model runs, and nothing else can be made from it.
void check_columns_once(const Checkpoint& checkpoint);

// Writes a fidelio checkpoint. Weights are requested one by one, so only one need be in memory, and each twice, as
// their hash precedes them in the file. Norms and biases come from `source`; config and tokenizer files are copied.
// Every linear gets a tensor of its own, even where the source stores several as one; for a model that sees images, the
// text model is written. The folder appears complete or not at all.
void write_checkpoint(const std::string& folder, const Checkpoint& source,
                      const std::map<LinearId, FormatSpec>& formats,
                      const std::function<LinearWeight(LinearId)>& weight, const nlohmann::json& provenance);

// Copies the files beside config.json and the weights: tokenizer, chat template, generation defaults. Throws Error for
// a link out of the folder, or, in a Hugging Face cache (models--NAME/snapshots/REVISION), out of models--NAME.
void copy_companions(const TextFiles& from, const std::string& to_folder);

}  // namespace fidelio
