// The model card: README.md of a model's folder, as the Hub shows it. It says what the model was made of, how near to that
// it is, how it was made and how it is run, and nothing that is not in the model's files.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compress/certificate/certificate.h"

namespace fidelio {

struct CardFacts {
  std::string name;         // of the folder or file that the card is about, without the way there
  std::string source = "";  // the name of the model it was made of; "": not known
  std::optional<int64_t> source_file_bytes = {};
  std::optional<Certificate> certificate;  // none where there is none that can be read
  bool kept = true;                        // it was found to hold, or was not measured again
  std::string source_card = "";            // README.md of the model it was made of, if that has one
  std::string hub_name = "";               // of that model, where its config.json says OWNER/NAME
  int64_t bytes = 0, parameters = 0;
  std::map<std::string, int64_t> formats;  // how many weights have a format
  std::string target = "fidelio";          // or what `fidelio export --to` was given
  bool asymmetric = false;                 // some linear of a layer has zero points
  std::vector<std::string> notes = {};     // what an export rounded
  std::string command = "", version = "";  // how it was made
};

// Those that are in a checkpoint and in `source`, the text files of the model it was made of. An export has the facts of the
// checkpoint that is exported, but for name, bytes, target and notes.
CardFacts card_facts(const Checkpoint& checkpoint, const TextFiles& source);

std::string model_card(const CardFacts& facts);

// Writes it as README.md of the folder and returns true, unless there is such a file, which is left as it is.
bool write_card(const std::string& folder, const CardFacts& facts);

}  // namespace fidelio
