// Reports of routing dispatch: the story for people, JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "routing/dispatch.h"

namespace carpool {

/// One JSON document: profile, kernel, rules (of the table that chose the kernel), entry (the
/// tables before it), config, numerics, notes.
std::string ExplainJson(const DispatchLog& log, const DispatchCase& c);
std::string ExplainText(const DispatchLog& log, const DispatchCase& c);

/// Where two profiles part for one config: the first rule or predicate that differs.
std::string DiffJson(const DispatchLog& a, const DispatchLog& b, const DispatchCase& c);
std::string DiffText(const DispatchLog& a, const DispatchLog& b, const DispatchCase& c);

/// Every preset x every profile -> kernel; models that can fuse their shared expert get a second
/// row.
std::string ExplainAllJson(const DispatchCase& base);
std::string ExplainAllText(const DispatchCase& base);

}  // namespace carpool
