// Model<B>: the weights of a decoder-only transformer as one backend holds them.
#pragma once
#include <memory>
#include <vector>

#include "arch/model_config.h"
#include "io/checkpoint.h"
#include "kernels/backend.h"

namespace fidelio {

template <Backend B>
struct Layer {
  using Weight = std::shared_ptr<const typename B::Linear>;  // shared: a search holds many and switches pointers
  Weight q;                                                  // (h e, d)
  Weight k, v;                                               // (hk e, d)
  Weight o;                                                  // (d, h e)
  Weight gate, up;                                           // (f, d)
  Weight down;                                               // (d, f)
  typename B::Matrix attn_norm, mlp_norm;                    // (1, d)
  typename B::Matrix q_norm, k_norm;                         // (1, e); rows 0 where the architecture has none
};

template <Backend B>
struct Model {
  ModelConfig config;
  AttentionShape attention;
  std::shared_ptr<const typename B::Linear> embedding;  // (v, d)
  std::vector<Layer<B>> layers;
  typename B::Matrix final_norm;                   // (1, d)
  std::shared_ptr<const typename B::Linear> head;  // (v, d); tied: the embedding's own

  // The slot a linear lives in: the one enumeration behind load, pack, plan application and reports.
  std::shared_ptr<const typename B::Linear>& slot(LinearId id) {
    if (id.role == Role::embedding) return embedding;
    if (id.role == Role::head) return head;
    Layer<B>& layer = layers.at(static_cast<size_t>(id.layer));
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

AttentionShape attention_shape(const ModelConfig& config);

}  // namespace fidelio
