// `auto`: per step, the calibrated policy that the latency model says is fastest for this batch.
//
// Only policies a sweep has measured within the budget are ever taken, and only from a calibrated
// batch size not larger than the step's: with fewer rows there is less to ride on, so the same k0
// would cost more. Below the smallest calibrated batch size rows stay exact. Times come from t =
// a*assignments + b*T + c, fitted to the engine's own recent steps where those determine it, else
// from the calibration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/policy_chooser.h"
#include "lab/sweep_file.h"

namespace carpool {

class AutoPolicy final : public PolicyChooser {
 public:
  /// `max_kl`: replaces the calibration's budget for the mean when given. Errors: a calibration of
  /// another model, or with nothing within the budget at any batch size but vanilla.
  static Result<std::shared_ptr<AutoPolicy>> Make(Calibration calibration,
                                                  std::optional<double> max_kl,
                                                  const ModelConfig& model);

  std::shared_ptr<const PolicySpec> Choose(size_t decode_rows, const StepStats& decode) override;

  ChooserReport Report() const override;

 private:
  struct Choice {
    SweepPoint point;
    std::shared_ptr<const PolicySpec> policy;
  };
  struct Level {  // one calibrated batch size; vanilla first
    size_t batch = 0;
    std::vector<Choice> choices;
  };

  AutoPolicy() = default;
  void Learn(const StepStats& decode);
  const Level* LevelFor(size_t rows) const;
  const Choice& Best(const Level& level) const;
  void Switch(std::shared_ptr<const PolicySpec> to, size_t rows, const char* why);

  std::string name_;
  std::shared_ptr<const PolicySpec> vanilla_, current_;
  std::vector<Level> levels_;  // batch ascending
  LatencyFit fit_;
  bool fit_is_live_ = false;
  std::vector<LatencySample> recent_;  // a ring
  size_t next_ = 0;
  StepStats seen_;
  std::shared_ptr<const PolicySpec> wanted_;
  size_t wanted_for_ = 0;  // steps in a row
  uint64_t changes_ = 0;
};

}  // namespace carpool
