// A sentence for people whose model cannot be served here: what it is, what is nearest that can be, and what to do. The one
// table of those that are known, for Hugging Face's folders and GGUF files alike.
#pragma once
#include <string>
#include <string_view>

namespace fidelio {

// `name` is a class ("GptOssForCausalLM"), a model_type ("gpt_oss") or GGUF's general.architecture ("gpt-oss"), and
// `supported` the list of those that are, which is told of names that are not known. What to say behind "NAME is not supported".
std::string about_unserved_model(std::string_view name, std::string_view supported);

// The same behind "quantised by METHOD, which is not read here".
std::string about_unread_quantiser(std::string_view method);

// Says what a folder holds in place of a model that is read here, and what to do with that; "" if nothing is known.
std::string about_folder(const std::string& folder);

}  // namespace fidelio
