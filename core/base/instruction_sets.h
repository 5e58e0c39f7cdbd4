// For which instruction sets Highway's foreach_target compiles a kernel; include it before
// hwy/foreach_target.h.
#ifndef PELTON_CORE_BASE_INSTRUCTION_SETS_H_
#define PELTON_CORE_BASE_INSTRUCTION_SETS_H_

#include "core/base/sanitizer.h"

#if PELTON_SANITIZED
// The baseline and AVX2: the others are the same templates, and each set of reduction.cc takes
// twenty seconds to compile there.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
// Next to nothing faster than SSE4.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif

#endif  // PELTON_CORE_BASE_INSTRUCTION_SETS_H_
