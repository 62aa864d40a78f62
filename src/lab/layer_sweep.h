// Sensitivity per layer: what `oea:k0=x` costs and saves when one MoE layer alone takes it, and
// settings per layer put together from that.
//
// The costs of layers are taken to add up, which is true of small, independent disturbances only.
// So nothing here is ever used unmeasured: a sweep scores the settings it proposes like any other.
#pragma once

#include <string>
#include <vector>

#include "lab/sweep.h"

namespace carpool {

/// Layers that no point of `known` covers are measured, by teacher forcing, at every batch size and
/// k0 of 2 to k; k stands for vanilla: cost 0 and the layer's own T. Errors: as MeasureQuality.
Result<std::vector<LayerPoint>> MeasureLayers(const Model& model, ThreadPool& pool,
                                              std::span<const int32_t> x, const SweepOptions& o,
                                              std::vector<LayerPoint> known);

/// One k0 per layer: from all k on, always the step that saves most experts per KL, while the sum
/// of the layers' mean KLs stays within `max_kl`.
std::vector<size_t> ChooseK0(const std::vector<LayerPoint>& points, size_t batch, double max_kl);

/// Policies with a k0 per layer for `batch`, at parts and at all of the budget; without those that
/// are the same for all layers.
std::vector<std::string> PerLayerPolicies(const std::vector<LayerPoint>& points, size_t batch,
                                          double max_kl);

}  // namespace carpool
