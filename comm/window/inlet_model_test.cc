// The inlet in every order of small programs, and the mistakes that this finds.
#include <array>
#include <memory>
#include <string>

#include "comm/window/inlet.h"
#include "core/actor/tests/expect_outcome.h"
#include "core/actor/tests/interleavings.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using interleavings::Explore;
using interleavings::Fail;
using interleavings::ModelSync;
using interleavings::Outcome;
using interleavings::Plain;
using interleavings::Program;
using interleavings::RelaxedSync;

enum class Mistake {
  kNone,
  kDropsARefusedSum,       // the writer takes a refused Add for a done one
  kReadsAfterRelease,      // the owner
  kAddsToWhatItSawBefore,  // a refused Add is repeated without making the sum anew
};

// An inlet with values of one number each, of which p is always the same number.
template <typename Sync>
struct Edge {
  explicit Edge(Mistake planted = Mistake::kNone) : mistake(planted) {}

  void Put(int value) {
    const auto draft = inlet.Begin();
    values[draft.buffer].Set(value);
    inlet.Put(draft, value);
  }
  void Add(int value) {
    auto draft = inlet.Begin();
    values[draft.buffer].Set(value + (draft.is_zero ? 0 : values[draft.base].Get()));
    while (const auto again = inlet.Add(draft, value)) {
      draft = *again;
      if (mistake == Mistake::kDropsARefusedSum) return;
      if (mistake == Mistake::kAddsToWhatItSawBefore) continue;
      values[draft.buffer].Set(value + (draft.is_zero ? 0 : values[draft.base].Get()));
    }
  }
  // The value, which must be p.
  int Look(bool resets) {
    const auto view = inlet.Take({.resets = resets, .resets_p = resets});
    if (mistake == Mistake::kReadsAfterRelease) {
      inlet.Release();
      (void)inlet.version();  // others may come between
    }
    const int value = view.is_zero ? 0 : values[view.buffer].Get();
    if (mistake != Mistake::kReadsAfterRelease) inlet.Release();
    if (value != view.p) Fail("p is another value's");
    versions += view.version;
    return value;
  }
  void Get(int value) {
    const int buffer = inlet.BeginFill();
    values[buffer].Set(value);
    inlet.Fill(buffer);
  }

  const Mistake mistake;
  BasicInlet<Sync, Plain<double>> inlet{/*is_zero=*/true};
  std::array<Plain<int>, 4> values = {Plain<int>(0), Plain<int>(0), Plain<int>(0), Plain<int>(0)};
  uint32_t versions = 0;
};

// Longer programs have more orders than there is time for: a few changes of thread show mistakes.
constexpr int kPreemptions = 3;

// A writer adds twice while the owner collects twice.
template <typename Sync>
Outcome SumsAreCollected(Mistake mistake) {
  return Explore(
      [=] {
        auto edge = std::make_shared<Edge<Sync>>(mistake);
        auto collected = std::make_shared<int>(0);
        Program program;
        program.threads.push_back([=] {
          edge->Add(1);
          edge->Add(2);
        });
        program.threads.push_back([=] {
          *collected += edge->Look(/*resets=*/true);
          *collected += edge->Look(/*resets=*/true);
        });
        program.at_end = [=] {
          if (*collected + edge->Look(/*resets=*/true) != 3) Fail("mass was lost or made");
        };
        return program;
      },
      kPreemptions);
}

TEST(InletModelTest, WhatIsAddedIsCollectedOnce) {
  ExpectRight(SumsAreCollected<ModelSync>(Mistake::kNone));
}
TEST(InletModelTest, ASumThatIsTakenForDoneIsFound) {
  ExpectWrong(SumsAreCollected<ModelSync>(Mistake::kDropsARefusedSum), "mass");
}
TEST(InletModelTest, ASumOfAnOldValueIsFound) {
  ExpectWrong(SumsAreCollected<ModelSync>(Mistake::kAddsToWhatItSawBefore), "value");
}
TEST(InletModelTest, AnExchangeWithoutReleaseAndAcquireIsFound) {
  ExpectWrong(SumsAreCollected<RelaxedSync>(Mistake::kNone), "data race");
}

// A writer puts 1, 2 and 3 while the owner looks, and the value stays.
Outcome PutsAreSeen(Mistake mistake) {
  return Explore(
      [=] {
        auto edge = std::make_shared<Edge<ModelSync>>(mistake);
        auto last = std::make_shared<int>(0);
        Program program;
        program.threads.push_back([=] {
          for (int value = 1; value <= 3; ++value) edge->Put(value);
        });
        program.threads.push_back([=] {
          for (int i = 0; i < 2; ++i) {
            const int seen = edge->Look(/*resets=*/false);
            if (seen < *last) Fail("an older value came back");
            *last = seen;
          }
        });
        program.at_end = [=] {
          if (edge->Look(/*resets=*/false) != 3) Fail("the last value is missing");
          if (edge->versions != 3) Fail("a version was lost or made");
        };
        return program;
      },
      kPreemptions);
}

TEST(InletModelTest, ALookSeesWholePutsWithTheirPAndVersion) {
  ExpectRight(PutsAreSeen(Mistake::kNone));
}
TEST(InletModelTest, ALookAfterTheReleaseIsFound) {
  // A race where it is half written, another value where it is whole.
  EXPECT_NE(PutsAreSeen(Mistake::kReadsAfterRelease).error, "");
}

// The owner gets, which replaces the value and leaves p, while the writer adds.
TEST(InletModelTest, AGetReplacesTheValueAndLeavesP) {
  ExpectRight(Explore(
      [] {
        struct State {
          BasicInlet<ModelSync, Plain<double>> inlet{/*is_zero=*/true};
          std::array<Plain<int>, 4> values = {Plain<int>(0), Plain<int>(0), Plain<int>(0),
                                              Plain<int>(0)};
        };
        auto state = std::make_shared<State>();
        Program program;
        program.threads.push_back([=] {
          auto draft = state->inlet.Begin();
          while (true) {
            const int before = draft.is_zero ? 0 : state->values[draft.base].Get();
            state->values[draft.buffer].Set(before + 1);
            const auto again = state->inlet.Add(draft, 1);
            if (!again) return;
            draft = *again;
          }
        });
        program.threads.push_back([=] {
          const int buffer = state->inlet.BeginFill();
          state->values[buffer].Set(10);
          state->inlet.Fill(buffer);
        });
        program.at_end = [=] {
          const auto view = state->inlet.Take({});
          const int value = state->values[view.buffer].Get();
          if (value != 10 && value != 11) Fail("neither of the two orders");
          if (view.p != 1 || view.version != 1) Fail("p or the version is another one");
        };
        return program;
      },
      kPreemptions + 1));
}

}  // namespace
}  // namespace pelton
