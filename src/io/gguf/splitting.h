// Splitting patterns of byte-level BPE by the names that GGUF files give them (tokenizer.ggml.pre). llama.cpp applies
// code of its own for each name; here a name stands for the pre-tokenizer of the Hugging Face model it was made from.
#pragma once
#include <span>
#include <string_view>

namespace fidelio::gguf {

struct Splitting {
  std::string_view name;
  std::string_view regex;  // "": GPT-2's, which ByteLevel has built in
  bool single_digits;      // every digit is cut off first
  bool ignore_merges;      // a word that is a token is one, whatever merges say
  bool nfc;                // the model's tokenizer composes characters first (llama.cpp does not)
  bool adds_bos;           // where the file does not say
};
std::span<const Splitting> splittings();

}  // namespace fidelio::gguf
