// Model<B>: the weights of a decoder-only transformer as one backend holds them.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "arch/model_config.h"
#include "io/checkpoint.h"
#include "kernels/backend.h"

namespace fidelio {

// A model's scalars as the forward has them. Nothing multiplies what attention and the MLP add: the stream is kept
// divided by residual_scale m instead. x' = x + m f(norm(x)) is, with y = x / m, y' = y + f(norm(y)) where the norm's
// epsilon is divided by m^2, for a norm does not see the size of its input. What divides logits is in the final norm's
// weight.
struct Scalars {
  float embedding = 1;   // times a row of the table
  float eps = 0;         // of norms of the stream
  float branch_eps = 0;  // of norms of what is added to it
  float final_norm = 1;  // times that norm's weight
};
Scalars scalars_of(const ModelConfig& config);

template <Backend B>
struct Expert {
  std::shared_ptr<const typename B::Linear> gate, up, down;
};

template <Backend B>
struct Layer {
  using Weight = std::shared_ptr<const typename B::Linear>;  // shared: a search holds many and switches pointers
  Weight q;                                                  // (h e, d)
  Weight k, v;                                               // (hk e, d)
  Weight o;                                                  // (d, h e)
  Weight gate, up;                                           // (f, d)
  Weight down;                                               // (d, f)
  // Rows 0 where the family has none: before attention and the MLP (1, d), of what they add (1, d), of queries and keys,
  // (1, e), or (1, h e) and (1, hk e) for all heads together.
  typename B::Matrix attn_norm, mlp_norm, post_attn_norm, post_mlp_norm, q_norm, k_norm;
  // Of the inputs by InputId: the order in which the weights have their columns; empty: the input's own.
  std::array<typename B::Order, 4> orders = {};
  // (E) in place of gate, up and down, and who chooses: (E, d).
  std::vector<Expert<B>> experts = {};
  Weight router = {};
  typename B::Experts gates = {}, ups = {}, downs = {};  // those of `experts`, once collect_experts() was called
  const typename B::Order& order(InputId input) const { return orders[static_cast<size_t>(input)]; }
};

// The head's rows of some tokens, which a draft may read in its place.
template <Backend B>
struct ShortHead {
  std::shared_ptr<const typename B::Linear> rows;  // (tokens, d); null: there is none
  typename B::TokenSet tokens;
  typename B::Matrix logits;  // (logit rows, tokens)
};

// What a linear's input is turned by (ModelConfig::rotated).
template <Backend B>
struct Turn {
  Hadamard how;  // of order 1: nothing
  typename B::Matrix signs;
};
// The heads of attention's output among each other; the f columns of the gate's.
Hadamard heads_turn(const ModelConfig& config);
Hadamard gated_turn(const ModelConfig& config);

template <Backend B>
struct Model {
  ModelConfig config;
  AttentionShape attention;
  Scalars scalars;
  std::shared_ptr<const typename B::Linear> embedding;  // (v, d)
  std::vector<Layer<B>> layers;
  Turn<B> attended, gated;                         // of the inputs of o and down
  typename B::Matrix final_norm;                   // (1, d)
  std::shared_ptr<const typename B::Linear> head;  // (v, d); tied: the embedding's own
  ShortHead<B> short_head;
  bool reads_short_head = false;  // in the step that has begun
  const typename B::Linear& head_of_step() const { return reads_short_head ? *short_head.rows : *head; }

  // The slot a linear lives in: the one enumeration behind load, pack, plan application and reports.
  std::shared_ptr<const typename B::Linear>& slot(LinearId id) {
    if (id.role == Role::embedding) return embedding;
    if (id.role == Role::head) return head;
    Layer<B>& layer = layers.at(static_cast<size_t>(id.layer));
    if (id.expert >= 0) {
      Expert<B>& expert = layer.experts.at(static_cast<size_t>(id.expert));
      return id.role == Role::gate ? expert.gate : id.role == Role::up ? expert.up : expert.down;
    }
    switch (id.role) {
      case Role::q:
        return layer.q;
      case Role::k:
        return layer.k;
      case Role::v:
        return layer.v;
      case Role::o:
        return layer.o;
      case Role::gate:
        return layer.gate;
      case Role::up:
        return layer.up;
      default:
        return layer.down;
    }
  }
};

// `context`: positions of the longest sequence, which chooses the frequencies of longrope.
AttentionShape attention_shape(const ModelConfig& config, int64_t context);
// What weights of q's norm per head are multiplied by, so that scores have the model's scale.
float query_scale(const ModelConfig& config);
// Throws Error, naming what differs, unless one set of matrices and one cache serve both.
void check_same_shapes(const ModelConfig& draft, const ModelConfig& model);

}  // namespace fidelio
