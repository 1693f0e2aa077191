#include <cctype>
#include <nlohmann/json.hpp>

#include "core/foreign/units.h"
#include "io/export/common.h"
#include "io/export/export.h"
#include "io/export/gguf.h"

namespace fidelio {
namespace {

using namespace exporting;

std::string text_of_key(const nlohmann::json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string()) return "";
  return object[key].get<std::string>();
}

// A stranger's file may claim anything about its origin, and readers are told to type this name.
bool can_be_typed(const std::string& name) {
  return !name.empty() && name.front() != '-' && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  });
}

const char* consumer_of(std::string_view target) {
  return target == "gguf" ? "llama.cpp" : target == "gptq" ? "gptq" : "vllm";
}

}  // namespace

std::string line_that_fits(const Checkpoint& source, std::string_view target) {
  const nlohmann::json about = nlohmann::json::parse(source.provenance());
  const std::string model = text_of_key(about, "source");
  std::string asked = "--ear 0.98";
  nlohmann::json wanted;
  if (about.is_object() && about.contains("certificate") && about["certificate"].is_object())
    wanted = about["certificate"].value("target", nlohmann::json());
  for (const char* key : {"top1", "kl", "ear"})
    if (wanted.is_object() && wanted.contains(key) && wanted[key].is_number())
      asked = fmt::format("--{} {:g}", key, wanted[key].get<double>());
  return fmt::format("fidelio compress {} {} --for {} -o NEW", can_be_typed(model) ? model : "ORIGINAL", asked,
                     consumer_of(target));
}

std::string why_larger(const Checkpoint& source, std::string_view target) {
  const nlohmann::json about = nlohmann::json::parse(source.provenance());
  const bool ours = text_of_key(about, "method") != "";
  // `outer` is the bytes of a coded vocabulary that becomes dense, `in_f32` those of layers' linears held in F32.
  int64_t outer = 0, in_f32 = 0;
  for (LinearId id : linears_of(source.config())) {
    const FormatSpec spec = source.format(id);
    const bool decoded = is_outer(id) && !spec.is_dense() && (target != "gguf" || is_decoded(source, id));
    if (decoded) outer += 2 * shape_of(source.config(), id).elements();
    in_f32 += !is_outer(id) && spec.kind == Kind::f32;
  }
  if (!ours)
    return fmt::format(
        "{} was not made by fidelio, and an export holds weights as fidelio does{}. Quantise it first: `fidelio "
        "quantize "
        "{} --format {} --embedding int8g32 -o NEW`",
        source.folder(), in_f32 > 0 ? fmt::format(", {} of them in F32", in_f32) : "", source.folder(),
        target == "gguf" ? "int4g32" : "int4g128");
  if (outer > 0 && target == "gguf")
    return fmt::format(
        "Embedding and head take {} of it, because a GGUF file has no block for their format. Make the model anew with "
        "--embedding int8g32, which it holds as it is, or by `{}`",
        bytes_text(outer), line_that_fits(source, target));
  if (outer > 0)
    return fmt::format(
        "Embedding and head take {} of it, because readers of {} hold them in 16 bits only. A GGUF file holds them in "
        "8: "
        "make the model with --embedding int8g32 and export it --to gguf",
        bytes_text(outer), target);
  if (text_of_key(about, "for") == consumer_of(target))
    return fmt::format(
        "It was made for {} already, and its weights are the same there. What is wider is the header, and codes of 3, "
        "5, 6 or 7 bits where a reader wants them in words of 32",
        consumer_of(target));
  return fmt::format("The formats of its weights are wider there. `{}` chooses among those that are not",
                     line_that_fits(source, target));
}

void check_exports_to(const Checkpoint& source, std::string_view target) {
  if (target == "gguf") {
    check_gguf_model(source);
    GgufKeys unused;
    const ModelConfig& c = source.config();
    return put_tokenizer(unused, source.texts(), c.v, c.eos_ids.empty() ? -1 : c.eos_ids.front());
  }
  check_separate(source, target);
  check(target != "gptq" || delta_layers(source.config()).empty(),
        "{} cannot be exported to gptq: its form does not say which parts of a delta net stay as they are; "
        "compressed-tensors and gguf do",
        source.folder());
  check(target != "gptq" || source.config().experts == 0,
        "{} cannot be exported to gptq: its readers disagree on how the experts of {} are kept; compressed-tensors and "
        "gguf hold them",
        source.folder(), name_of(source.config().architecture));
}

}  // namespace fidelio
