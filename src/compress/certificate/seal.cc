#include "compress/certificate/seal.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "core/hash.h"

namespace fidelio {
namespace {

constexpr size_t kSealDigits = 12;

bool is_measured(const std::string& field) {
  static const std::set<std::string> kMeasured = {"documents", "domains",  "ear",           "kl",
                                                  "met",       "promised", "tokens",        "top1",
                                                  "wider",     "windows",  "next_document", "perplexity_ratio"};
  return kMeasured.contains(field);
}

}  // namespace

nlohmann::json seal_of(const nlohmann::json& certificate) {
  nlohmann::json seal = nlohmann::json::object();
  for (const auto& [field, value] : certificate.items()) seal[field] = sha256_hex(value.dump()).substr(0, kSealDigits);
  return seal;
}

EditedFields edited_fields(const Checkpoint& checkpoint) {
  const nlohmann::json provenance = nlohmann::json::parse(checkpoint.provenance());
  const nlohmann::json written = provenance.value("certificate_seal", nlohmann::json());
  check(written.is_object(),
        "{}: its certificate has no seal: it was changed, or cut out of another file; compress the "
        "model again",
        checkpoint.folder());
  const nlohmann::json now = seal_of(provenance.at("certificate"));
  std::set<std::string> differing;
  for (const nlohmann::json* one : {&written, &now})
    for (const auto& [field, hash] : one->items())
      if (written.value(field, nlohmann::json()) != now.value(field, nlohmann::json())) differing.insert(field);
  EditedFields edited;
  for (const std::string& field : differing)
    (is_measured(field) ? edited.by_measuring : edited.others).push_back(foreign(field));
  return edited;
}

}  // namespace fidelio
