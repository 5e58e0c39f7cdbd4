// Every kind of round through a model's port, with no Python and no torch, against plain loops in
// one process. Runs with ranks as threads over shared memory in process and, as
// backend/link:model_port_link_test, with a daemon for each rank; and as model_port_sim_test with
// trainers and daemons in one thread, in the orders that seeds give.
#include "backend/model_port.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "backend/test_port_ranks.h"
#include "backend/test_port_worlds.h"
#include "backend/test_tensors.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// All ranks' mean, in rank order (SUM-1b).
std::vector<float> MeanOf(const std::vector<Tensors>& ranks, size_t slot) {
  std::vector<float> mean = ranks[0][slot];
  for (size_t i = 0; i < mean.size(); ++i) {
    volatile float sum = mean[i];
    for (size_t rank = 1; rank < ranks.size(); ++rank) sum = sum + ranks[rank][slot][i];
    mean[i] = sum / static_cast<float>(ranks.size());
  }
  return mean;
}

TEST(ModelPortTest, LocalSgdEqualsOneProcessBitByBit) {
  std::vector<Tensors> expected(3, Initial());
  for (uint64_t step = 1; step <= 6; ++step) {
    for (int32_t rank = 0; rank < 3; ++rank) Train(expected[rank], rank, step);
    if (step % 2 != 0) continue;
    for (size_t slot = 0; slot < 2; ++slot) {
      const std::vector<float> mean = MeanOf(expected, slot);
      for (Tensors& rank : expected) rank[slot] = mean;
    }
  }
  EXPECT_EQ(RunWorld(3, {"local_sgd", {{"interval", "2"}}}, TrainFor(6)), expected);
}

TEST(ModelPortTest, DecentralizedAveragesTheWeightsOfTheForwardPass) {
  std::vector<Tensors> expected(3, Initial());
  for (uint64_t step = 1; step <= 4; ++step) {
    for (size_t slot = 0; slot < 2; ++slot) {
      const std::vector<float> mean = MeanOf(expected, slot);
      for (Tensors& rank : expected) rank[slot] = mean;
    }
    for (int32_t rank = 0; rank < 3; ++rank) Train(expected[rank], rank, step);
  }
  EXPECT_EQ(RunWorld(3, {"decentralized", {{"peer_selection_mode", "all"}}}, TrainFor(4)),
            expected);
}

// Streaming DiLoCo, element by element: fragments of one tensor each take turns, and the result of
// a round is merged a step after it was begun.
std::vector<Tensors> StreamingDiLoCo(uint64_t steps) {
  std::vector<Tensors> ranks(2, Initial());
  Tensors anchor = Initial();
  Tensors momentum = {std::vector<float>(kCounts[0]), std::vector<float>(kCounts[1])};
  size_t round = 0;
  for (uint64_t step = 1; step <= steps; ++step) {
    for (int32_t rank = 0; rank < 2; ++rank) Train(ranks[rank], rank, step);
    if (step >= 2 && step % 2 == 1) {           // of the round that began a step ago
      const size_t slot = 1 - (round - 1) % 2;  // buckets lie in reverse order of registration
      for (size_t i = 0; i < anchor[slot].size(); ++i) {
        for (Tensors& rank : ranks) {
          volatile float kept = 0.5F * rank[slot][i];
          volatile float taken = 0.5F * anchor[slot][i];
          rank[slot][i] = kept + taken;
        }
      }
    }
    if (step % 2 != 0) continue;
    const size_t slot = 1 - round++ % 2;
    for (size_t i = 0; i < anchor[slot].size(); ++i) {
      volatile float sum = anchor[slot][i] - ranks[0][slot][i];
      volatile float other = anchor[slot][i] - ranks[1][slot][i];
      sum = sum + other;
      const float gradient = sum / 2;
      volatile float decayed = 0.9F * momentum[slot][i];
      momentum[slot][i] = decayed + gradient;
      volatile float first = 0.7F * gradient;
      volatile float moved = anchor[slot][i] - first;
      volatile float second =
          static_cast<float>(static_cast<double>(0.7) * 0.9) * momentum[slot][i];
      anchor[slot][i] = moved - second;
    }
  }
  return ranks;
}

const PortSettings& Streaming() {
  static const auto* const settings =
      new PortSettings{"diloco", {{"interval", "4"}, {"fragments", "2"}, {"delay", "1"}}};
  return *settings;
}

TEST(ModelPortTest, StreamingDiLoCoEqualsOneProcess) {
  const std::vector<Tensors> trained = RunWorld(2, Streaming(), TrainFor(11));
  const std::vector<Tensors> expected = StreamingDiLoCo(11);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t slot = 0; slot < 2; ++slot) {
      for (size_t i = 0; i < kCounts[slot]; ++i) {
        ASSERT_NEAR(trained[rank][slot][i], expected[rank][slot][i], 1e-5)
            << "rank " << rank << ", tensor " << slot << ", element " << i;
      }
    }
  }
  EXPECT_EQ(RunWorld(2, Streaming(), TrainFor(11)), trained) << "a second run";
}

TEST(ModelPortTest, GoesOnFromTheStateOfADelayedRoundThatWasOpen) {
  const std::vector<Tensors> whole = RunWorld(2, Streaming(), TrainFor(9));
  for (const uint64_t stop : {2, 4, 6}) {  // in a round of either fragment
    RunPortRanks(2, [&](PortRank& rank) {
      PlainTensors tensors(Initial());
      PortSettings settings = Streaming();
      for (uint64_t begin : {uint64_t{0}, stop}) {
        ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port, MakePort(rank, settings, tensors));
        for (uint64_t step = begin + 1; step <= (begin == 0 ? stop : 9); ++step) {
          Train(tensors.tensors(), rank.rank.value(), step);
          RETURN_IF_ERROR(port->Post(Event(EventKind::kAfterStep)));
        }
        settings.steps = port->trigger().steps();
        EXPECT_EQ(port->is_open(), begin == 0);
        ASSIGN_OR_RETURN(settings.state, port->State());
      }
      EXPECT_EQ(tensors.tensors(), whole[static_cast<size_t>(rank.rank.value())])
          << "stopped after step " << stop;
      return rank.meet("end");
    });
  }
}

// A round of tensors that become ready, of which this rank uses `slots`.
absl::Status BackwardPass(ModelPort& port, const std::vector<int32_t>& slots) {
  RETURN_IF_ERROR(port.Post(Event(EventKind::kBackwardBegins)));
  for (int32_t slot : slots) {
    TrainingEvent ready = Event(EventKind::kTensorReady);
    ready.slot = slot;
    RETURN_IF_ERROR(port.Post(ready));
  }
  RETURN_IF_ERROR(port.Post(Event(EventKind::kBackwardEnds)));
  RETURN_IF_ERROR(port.Wait());
  return port.AdoptOrder();
}

// QAdam's exchange, of moments that its codec encodes without loss, as they become ready and when
// the trainer asks for it.
TEST(ModelPortTest, QAdamsExchangeIsTheMeanOfTheMoments) {
  const auto moment = [](int32_t rank, size_t slot, size_t i) {
    return static_cast<float>((i + slot + 2 * static_cast<size_t>(rank)) % 9) / 8;
  };
  for (const bool on_call : {false, true}) {
    const PortSettings settings = {
        "qadam", {{"codec", "float16"}, {"hierarchical", "false"}}, on_call};
    const std::vector<Tensors> exchanged =
        RunWorld(2, settings, [&](ModelPort& port, Tensors& tensors, int32_t rank) {
          for (size_t slot = 0; slot < 2; ++slot) {
            for (size_t i = 0; i < kCounts[slot]; ++i) tensors[slot][i] = moment(rank, slot, i);
          }
          RETURN_IF_ERROR(port.Post(Event(EventKind::kAfterStep)));
          EXPECT_EQ(port.statistics().rounds, 0) << "a step makes none";
          return on_call ? port.Post(Event(EventKind::kCall)) : BackwardPass(port, {1, 0});
        });
    for (const Tensors& rank : exchanged) {
      for (size_t slot = 0; slot < 2; ++slot) {
        for (size_t i = 0; i < kCounts[slot]; ++i) {
          ASSERT_EQ(rank[slot][i], (moment(0, slot, i) + moment(1, slot, i)) / 2);
        }
      }
    }
  }
}

// Tuning changes the plan in the middle, several times, and nothing else.
TEST(ModelPortTest, RoundsThatAreTunedGiveTheSameMeans) {
  constexpr uint64_t kSteps = 70;
  for (const bool is_late : {false, true}) {  // before the order is adopted, or after
    const std::vector<Tensors> reduced =
        RunWorld(3, {"gradient_allreduce"}, [&](ModelPort& port, Tensors& tensors, int32_t rank) {
          uint32_t plans = 0;
          for (uint64_t step = 1; step <= kSteps; ++step) {
            if (step == (is_late ? 3 : 1)) RETURN_IF_ERROR(port.Tune(""));
            std::vector<Tensors> all(3, Initial());
            for (int32_t other = 0; other < 3; ++other) Train(all[other], other, step);
            tensors = all[static_cast<size_t>(rank)];
            RETURN_IF_ERROR(BackwardPass(port, {1, 0}));
            for (size_t slot = 0; slot < 2; ++slot) {
              EXPECT_EQ(tensors[slot], MeanOf(all, slot)) << "step " << step;
            }
            plans = port.statistics().plan_generation;
          }
          EXPECT_FALSE(port.is_tuning());
          EXPECT_GE(plans, 4U) << "both plans had turns";
          return absl::OkStatus();
        });
    EXPECT_EQ(reduced.size(), 3U);
  }
}

TEST(ModelPortTest, WhatDependsOnItsBucketsIsNotTuned) {
  const auto check = [](const PortSettings& settings, const std::string& what) {
    RunWorld(2, settings, [&](ModelPort& port, Tensors&, int32_t) {
      const absl::Status status = port.Tune("");
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(status.message(), HasSubstr(what));
      EXPECT_FALSE(port.is_tuning());
      return absl::OkStatus();
    });
  };
  check({"bytegrad", {{"hierarchical", "false"}}}, "results would change with the buckets");
  check({"local_sgd"}, "its rounds are not in backward passes");
}

// What the servers' parts hold back, by tensor and element, as all ranks have told it.
std::vector<std::vector<float>> HeldBack(const std::vector<ModelState>& states) {
  std::vector<std::vector<float>> held(2);
  for (size_t slot = 0; slot < 2; ++slot) held[slot].resize(kCounts[slot]);
  for (const ModelState& state : states) {
    for (const TensorState& tensor : state.tensors) {
      if (!absl::StrContains(tensor.key, "server")) continue;
      std::vector<float>& whole = held[tensor.tensor == "t0" ? 0 : 1];
      for (size_t i = 0; i * sizeof(float) < tensor.bytes.size(); ++i) {
        if (tensor.begin + i >= whole.size()) continue;  // of the gap behind it
        float value = 0;
        std::memcpy(&value, tensor.bytes.data() + i * sizeof(float), sizeof(value));
        whole[tensor.begin + i] += value;
      }
    }
  }
  return held;
}

// Each element has one rank that serves it. With the order of the gradients others do than before.
TEST(ModelPortTest, WhatServersHoldBackMovesWithTheirParts) {
  constexpr int kRanks = 3;
  std::vector<ModelState> before(kRanks);
  std::vector<ModelState> after(kRanks);
  const PortSettings settings{.algorithm = "bytegrad",
                              .options = {{"codec", "one_bit"}, {"hierarchical", "false"}},
                              .bucket_bytes = 1 << 20};
  RunWorld(kRanks, settings, [&](ModelPort& port, Tensors& tensors, int32_t rank) {
    // Of other signs on each rank, so that the mean takes more than the codec's one bit.
    for (std::vector<float>& tensor : tensors) {
      for (size_t i = 0; i < tensor.size(); ++i) {
        tensor[i] = static_cast<float>(i * static_cast<size_t>(rank + 2) % 7) - 3;
      }
    }
    RETURN_IF_ERROR(port.Post(Event(EventKind::kBackwardBegins)));
    for (int32_t slot : {0, 1}) {  // the plan has them the other way round
      TrainingEvent ready = Event(EventKind::kTensorReady);
      ready.slot = slot;
      RETURN_IF_ERROR(port.Post(ready));
    }
    RETURN_IF_ERROR(port.Post(Event(EventKind::kBackwardEnds)));
    RETURN_IF_ERROR(port.Wait());
    ASSIGN_OR_RETURN(before[static_cast<size_t>(rank)], port.State());
    RETURN_IF_ERROR(port.AdoptOrder());
    ASSIGN_OR_RETURN(after[static_cast<size_t>(rank)], port.State());
    return absl::OkStatus();
  });
  const std::vector<std::vector<float>> held = HeldBack(before);
  for (size_t slot = 0; slot < 2; ++slot) {
    EXPECT_TRUE(std::any_of(held[slot].begin(), held[slot].end(), [](float v) { return v != 0; }));
  }
  EXPECT_EQ(HeldBack(after), held);
  EXPECT_NE(before[0].order, after[0].order);
}

TEST(ModelPortTest, GradientsThatBecomeReadyAreReplacedByTheirMean) {
  std::vector<Tensors> expected(3, Initial());
  const auto make = [](Tensors& tensors, int32_t rank, uint64_t step) {
    tensors = Initial();
    Train(tensors, rank, step);
  };
  const std::vector<Tensors> reduced =
      RunWorld(3, {"gradient_allreduce"}, [&](ModelPort& port, Tensors& tensors, int32_t rank) {
        for (uint64_t step = 1; step <= 3; ++step) {
          make(tensors, rank, step);
          RETURN_IF_ERROR(BackwardPass(port, {1, 0}));
          EXPECT_EQ(port.statistics().plan_generation, 2)
              << "buckets follow the order of the first";
        }
        // The first tensor is of no use to anybody, the second one to rank 0.
        make(tensors, rank, 4);
        return BackwardPass(port, rank == 0 ? std::vector<int32_t>{1} : std::vector<int32_t>());
      });
  for (int32_t rank = 0; rank < 3; ++rank) make(expected[rank], rank, 4);
  for (size_t rank = 1; rank < 3; ++rank)
    std::fill(expected[rank][1].begin(), expected[rank][1].end(), 0.0F);
  const std::vector<float> mean = MeanOf(expected, 1);
  for (const Tensors& rank : reduced) {
    EXPECT_EQ(rank[0], std::vector<float>(kCounts[0], 0.0F)) << "what its port made of it";
    EXPECT_EQ(rank[1], mean);
  }
}

// The round that begins after step 12 has all of it, and its result comes after step 14.
TEST(ModelPortTest, PushSumWithADelayComesToTheMeanOfWhatRanksLearn) {
  const std::vector<Tensors> averaged =
      RunWorld(2, {"push_sum", {{"graph", "ring"}, {"interval", "4"}, {"delay", "2"}}},
               [&](ModelPort& port, Tensors& tensors, int32_t rank) {
                 RETURN_IF_ERROR(TrainFor(11)(port, tensors, rank));
                 for (int step = 12; step <= 14; ++step) {
                   RETURN_IF_ERROR(port.Post(Event(EventKind::kBeforeStep)));
                   RETURN_IF_ERROR(port.Post(Event(EventKind::kAfterStep)));
                 }
                 EXPECT_EQ(port.statistics().rounds, 3);
                 return absl::OkStatus();
               });
  std::vector<Tensors> alone(2, Initial());
  for (int32_t rank = 0; rank < 2; ++rank) {
    for (uint64_t step = 1; step <= 11; ++step) Train(alone[rank], rank, step);
  }
  for (size_t slot = 0; slot < 2; ++slot) {
    const std::vector<float> mean = MeanOf(alone, slot);
    for (const Tensors& rank : averaged) {
      for (size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(rank[slot][i], mean[i], 1e-4) << i;
    }
  }
}

TEST(ModelPortTest, ARoundThatFailsLeavesTensorsAndStateAsTheyWere) {
  RunPortRanks(2, [](PortRank& rank) -> absl::Status {
    PlainTensors tensors(Initial());
    ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port,
                     MakePort(rank, {"diloco", {{"interval", "1"}}}, tensors));
    RETURN_IF_ERROR(TrainFor(1)(*port, tensors.tensors(), rank.rank.value()));
    if (rank.rank == Rank(1)) return absl::OkStatus();  // and leaves
    Train(tensors.tensors(), 0, 2);
    const Tensors before = tensors.tensors();
    const absl::Status failed = port->Post(Event(EventKind::kAfterStep));
    EXPECT_FALSE(failed.ok());
    EXPECT_EQ(tensors.tensors(), before);
    EXPECT_EQ(port->Post(Event(EventKind::kAfterStep)), failed);
    EXPECT_EQ(port->failure(), failed);
    return absl::OkStatus();
  });
}

TEST(ModelPortTest, WhereTheTensorsAreNotToBeHadNothingIsMerged) {
  RunPortRanks(1, [](PortRank& rank) -> absl::Status {
    PlainTensors tensors(Initial());
    ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port,
                     MakePort(rank, {"local_sgd", {{"interval", "1"}}}, tensors));
    RETURN_IF_ERROR(port->Post(Event(EventKind::kAfterStep)));
    EXPECT_THAT(std::exchange(tensors.merges, {}),
                ::testing::ElementsAre("begin", "t0", "t1", "end"));
    tensors.refusal = absl::DeadlineExceededError("somebody holds the weights");
    const absl::Status refused = port->Post(Event(EventKind::kAfterStep));
    EXPECT_EQ(refused.message(), "somebody holds the weights");
    EXPECT_THAT(tensors.merges, ::testing::ElementsAre("begin"));
    EXPECT_EQ(port->failure(), refused) << "what the other ranks have merged is lost here";
    return absl::OkStatus();
  });
}

TEST(ModelPortTest, TheUsersOrderOfBucketsIsKept) {
  RunPortRanks(1, [](PortRank& rank) -> absl::Status {
    for (const bool keeps_order : {false, true}) {
      PlainTensors tensors(Initial());
      PortSettings settings = {"gradient_allreduce"};
      settings.keeps_order = keeps_order;
      ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port, MakePort(rank, settings, tensors));
      RETURN_IF_ERROR(BackwardPass(*port, {0, 1}));
      EXPECT_EQ(port->statistics().plan_generation, keeps_order ? 1 : 2);
    }
    return absl::OkStatus();
  });
}

TEST(ModelPortTest, KnowsWhoHasSteppedAlsoWhereStepsMakeNothingDue) {
  RunWorld(1, {"gradient_allreduce"}, [](ModelPort& port, Tensors&, int32_t) {
    TrainingEvent step = Event(EventKind::kAfterStep);
    step.given_count = 2;
    RETURN_IF_ERROR(port.Post(step));
    EXPECT_FALSE(port.trigger().completed_step());
    step.optimizer = 1;
    RETURN_IF_ERROR(port.Post(step));
    EXPECT_TRUE(port.trigger().completed_step());
    return absl::OkStatus();
  });
}

TEST(ModelPortTest, AChangeThatAResultWouldUndoIsRefusedUntilItIsGone) {
  RunWorld(1, {"decentralized", {{"peer_selection_mode", "all"}}},
           [](ModelPort& port, Tensors& tensors, int32_t) {
             TrainingEvent keeps_graph = Event(EventKind::kBackwardEnds);
             keeps_graph.may_go_on = true;
             RETURN_IF_ERROR(port.Post(Event(EventKind::kForwardBegins)));
             RETURN_IF_ERROR(port.Post(keeps_graph));
             tensors[0][0] += 1;
             for (int attempt = 0; attempt < 2; ++attempt) {
               const absl::Status refused = port.Post(Event(EventKind::kForwardBegins));
               EXPECT_THAT(std::string(refused.message()), HasSubstr("would undo it"));
               EXPECT_EQ(port.trigger().steps(), 1) << "the event has not been";
             }
             tensors[0][0] -= 1;
             return port.Post(Event(EventKind::kForwardBegins));
           });
}

}  // namespace
}  // namespace pelton
