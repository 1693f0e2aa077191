// This file writes the model card: README.md of a model's folder, as the Hub shows it. It says what the model was made
// of, how near to that it is, how it was made and how it is run. It says nothing that is not in the model's files.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compress/certificate/certificate.h"

namespace fidelio {

struct CardFacts {
  std::string name;         // the folder or file that the card is about, without its path
  std::string source = "";  // the name of the model it was made of; "": not known
  std::optional<int64_t> source_file_bytes = {};
  std::optional<Certificate> certificate;  // empty if there is none that can be read
  bool kept = true;                        // false only if it was measured again and did not hold
  std::string source_card = "";            // README.md of the source, if it has one
  std::string hub_name = "";               // OWNER/NAME of the source, if its config.json says that
  int64_t bytes = 0, parameters = 0;
  std::map<std::string, int64_t> formats;   // how many weights have a format
  std::string target = "fidelio";           // otherwise the target of `fidelio export --to`
  bool asymmetric = false;                  // some linear of a layer has zero points
  std::vector<std::string> made_anew = {};  // where no other program holds the formats: commands that make ones they do
  std::vector<std::string> notes = {};      // what an export rounded
  std::string command = "", version = "";   // how it was made
};

// Collects the facts from a checkpoint and from `source`, the text files of the model that it was made of. An export
// has the facts of the checkpoint that is exported, except for name, bytes, target and notes.
CardFacts card_facts(const Checkpoint& checkpoint, const TextFiles& source);

std::string model_card(const CardFacts& facts);

// Writes the card as README.md of the folder and returns true. A file of that name is left as it is, and false is
// returned.
bool write_card(const std::string& folder, const CardFacts& facts);

}  // namespace fidelio
