// These helpers serve the tests of this room: a tiny model, a temporary folder, and the message of an Error.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/rng.h"
#include "io/checkpoint.h"
#include "quant/quantize.h"
#include "runtime/dataset.h"
#include "runtime/runner.h"

namespace fidelio {

template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "(no error)";
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fidelio-sensitivity-XXXXXX").string();
    check(::mkdtemp(name.data()) != nullptr, "cannot make a folder like {}", name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Tiny is a tiny model with its texts and quantised linears.
struct Tiny {
  explicit Tiny(const std::string& name)
      : checkpoint(Checkpoint::open(FIDELIO_SOURCE_DIR "/tests/models/" + name)), pool(2), runner(make()) {
    Rng rng(5);
    for (size_t length : {40, 17, 64, 2, 33}) {
      sequences.emplace_back(length);
      for (int32_t& id : sequences.back())
        id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(checkpoint.config().v)));
    }
  }
  // A batch holds about two sequences, and logits are computed a few rows at a time.
  std::unique_ptr<Runner> make() const {
    return make_cpu_runner(checkpoint, {.threads = 2,
                                        .isa = "",
                                        .kv = KvFormat::f32,
                                        .max_rows = 80,
                                        .max_logit_rows = 16,
                                        .cache_tokens = 256,
                                        .mode = Activations::f32});
  }
  PackedLinear rounded(LinearId id, const std::string& format) {
    const LinearWeight original = checkpoint.linear(id);
    LinearWeight q = quantize_rtn(parse_format(format), decode(original), original.out, original.in, {}, pool);
    q.bias = original.bias;
    return runner->pack(q);
  }
  Dataset dataset() const { return {sequences, 156, "text"}; }

  Checkpoint checkpoint;
  ThreadPool pool;
  std::unique_ptr<Runner> runner;
  std::vector<std::vector<int32_t>> sequences;
};

}  // namespace fidelio
