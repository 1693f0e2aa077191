// This file stores the state of a tuner between two steps, in one safetensors file that is complete or absent
// (core/file.h):
//
//   "NAME.value", "NAME.m", "NAME.v"   F32, every parameter's master and moments
//   "NAME.chosen"                      F32, the codes of vectors
//   "best.NAME"                        the tensors of the best model so far, as a checkpoint stores them
//   metadata "tuner": JSON             what the job is, the step, the evaluations so far
//            "sha256"                  of all of these
#pragma once
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "train/tune/student.h"

namespace fidelio::train {

template <class D>
void add_values(D& device, const std::string& name, const typename D::Real* values, int64_t n,
                std::vector<TensorToWrite>& tensors) {
  OwnedTensor t = OwnedTensor::allocate(DType::f32, Shape{n});
  device.download(values, t.as<float>());
  tensors.push_back(to_write(name, std::move(t)));
}
template <class D>
void load_values(D& device, const Safetensors& file, const std::string& name, int64_t n, typename D::Real* values) {
  device.upload(file.get(name, DType::f32, Shape{n}).template as<const float>(), values);
}

template <class D>
void add_parameter(D& device, const Parameter<D>& p, std::vector<TensorToWrite>& tensors) {
  for (auto [suffix, array] : {std::pair{".value", &p.value}, {".m", &p.m}, {".v", &p.v}})
    add_values(device, p.name + suffix, array->get(), p.n, tensors);
}
template <class D>
void load_parameter(D& device, const Safetensors& file, Parameter<D>& p) {
  for (auto [suffix, array] : {std::pair{".value", &p.value}, {".m", &p.m}, {".v", &p.v}})
    load_values(device, file, p.name + suffix, p.n, array->get());
}

void add_weights(const TunedWeights& weights, std::vector<TensorToWrite>& tensors);
// Loads the weights outside the layers and those of the first `layers` layers.
TunedWeights load_weights(const Safetensors& file, const Checkpoint& model, int layers);

void write_state(const std::string& path, std::vector<TensorToWrite> tensors, const nlohmann::json& about);
// Returns "" if the file is absent or undamaged, and otherwise the reason why it cannot be what was written.
std::string damage_of_state(const std::string& path);
// Both throw Error naming the file if it is damaged; the second also if it belongs to another job.
Safetensors open_state(const std::string& path);
nlohmann::json read_state(const Safetensors& file, const std::string& path, const nlohmann::json& job);

}  // namespace fidelio::train
