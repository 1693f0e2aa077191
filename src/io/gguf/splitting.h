// This file gives the splitting patterns of byte-level BPE by their names in GGUF files (tokenizer.ggml.pre). llama.cpp
// has special code for each name; here a name stands for the pre-tokenizer of the Hugging Face model that it was made
// from.
#pragma once
#include <span>
#include <string_view>

namespace fidelio::gguf {

struct Splitting {
  std::string_view name;
  std::string_view regex;  // "" is GPT-2's pattern, which ByteLevel has built in.
  bool single_digits;      // Every digit is cut off first.
  bool ignore_merges;      // A word that is a token becomes that token, whatever the merges are.
  bool nfc;                // The model's tokenizer composes characters first (llama.cpp does not).
  bool adds_bos;           // It holds where the file does not say.
};
std::span<const Splitting> splittings();

}  // namespace fidelio::gguf
