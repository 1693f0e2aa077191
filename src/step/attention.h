// The shape of a model's attention: heads, windows and rotations, as numbers that every backend reads.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace fidelio {

// A rotation turns heads by their position: pairs (i, i + n) of a head's first 2 n columns, where n is the number of
// frequencies, at most e / 2 (Hugging Face's half-split convention). The columns behind those are left as they are.
struct Rotation {
  std::vector<float> inverse_frequencies;  // (n) radians a position; with n = 0 nothing turns
  float scale = 1;                         // a factor on cos and sin (yarn, longrope)
  bool operator==(const Rotation&) const = default;
};

struct LayerAttention {
  int window = 0;    // a row sees the last `window` positions only; 0 means all of them
  int rotation = 0;  // an index into the shape's rotations
  int kv_heads = 0;  // hk and e of this layer; 0 means those of the shape
  int head_dim = 0;
  bool operator==(const LayerAttention&) const = default;
};

struct AttentionShape {
  std::vector<LayerAttention> layers;  // those that keep keys and values
  std::vector<Rotation> rotations;
  int heads = 0;       // h
  int kv_heads = 0;    // hk
  int head_dim = 0;    // e
  float norm_eps = 0;  // the epsilon of q_norm and k_norm
  // q is multiplied by it first. All scores are divided by sqrt(e) besides. It is 1 where q is normed.
  float query_scale = 1;
  // q at position p is also multiplied by 1 + growth * log(1 + floor(p / positions)) (Llama 4, Ministral 3). With
  // growth 0 it is not.
  double query_growth = 0;
  int query_growth_positions = 1;

  int head_dim_of(int layer) const {
    const int own = layers[static_cast<size_t>(layer)].head_dim;
    return own > 0 ? own : head_dim;
  }
  int kv_heads_of(int layer) const {
    const int own = layers[static_cast<size_t>(layer)].kv_heads;
    return own > 0 ? own : kv_heads;
  }
  // Tells whether all layers have the heads of the shape.
  bool is_uniform() const {
    for (int layer = 0; layer < depth(); ++layer)
      if (head_dim_of(layer) != head_dim || kv_heads_of(layer) != kv_heads) return false;
    return true;
  }
  int64_t depth() const { return static_cast<int64_t>(layers.size()); }
  float query_factor(int64_t position) const {
    const double steps = static_cast<double>(position / query_growth_positions);
    return query_scale * static_cast<float>(1 + query_growth * std::log1p(steps));
  }
};

}  // namespace fidelio
