// This file writes a sentence for people whose model cannot be served here: what it is, which similar model can be
// served, and what to do. It holds the one table of known models, for Hugging Face folders and GGUF files alike.
#pragma once
#include <string>
#include <string_view>

namespace fidelio {

// Returns the words that follow "NAME is not supported". `name` is a class ("DbrxForCausalLM"), a model_type
// ("dbrx") or GGUF's general.architecture ("dbrx"). `supported` is the list of supported names, which is shown
// for unknown ones.
std::string about_unserved_model(std::string_view name, std::string_view supported);

// Returns the words that follow "quantised by METHOD, which is not read here".
std::string about_unread_quantiser(std::string_view method);

// Tells what a folder holds in place of a model that can be read here, and what to do with it. Returns "" if nothing is
// known.
std::string about_folder(const std::string& folder);

}  // namespace fidelio
