// Trains a net on handwritten digits, data-parallel and without Python: `train DIGITS [ALGORITHM]`,
// once for each rank
// (`bfrun -np 2 train digits.txt`). Ends with status 0 if 95 % of the images that it has not seen
// are recognised.
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/backend.h"
#include "backend/environment.h"
#include "torch_bindings/module/parallel_module.h"

namespace {

constexpr int64_t kPixels = 64;
constexpr int64_t kTested = 360;  // the last images
constexpr int64_t kBatch = 32;    // of each rank
constexpr int kEpochs = 20;

struct Digits {
  torch::Tensor images;  // [count, 64], 0 to 1
  torch::Tensor labels;  // [count]
};

absl::StatusOr<Digits> Read(const std::string& path) {
  std::ifstream file(path);
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (int64_t label = 0; file >> label;) {
    labels.push_back(label);
    for (int64_t i = 0; i < kPixels; ++i) {
      float value = 0;
      if (!(file >> value))
        return absl::InvalidArgumentError(path + ": its last line is not whole");
      pixels.push_back(value / 16);
    }
  }
  if (labels.empty()) return absl::NotFoundError(path + ": no digits there; digits.py writes them");
  const auto count = static_cast<int64_t>(labels.size());
  return Digits{torch::tensor(pixels).reshape({count, kPixels}), torch::tensor(labels)};
}

torch::nn::Sequential MakeNet() {
  return torch::nn::Sequential(torch::nn::Linear(kPixels, 64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 10));
}

// Every rank draws the same order and takes its own part of each batch.
absl::Status Train(pelton::ParallelModule& parallel, torch::nn::Sequential& net,
                   const Digits& digits, const pelton::Backend& backend) {
  const int64_t ranks = backend.world_size().value();
  const int64_t rank = backend.rank().value();
  const int64_t count = digits.labels.size(0) - kTested;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    torch::manual_seed(epoch);
    const torch::Tensor order = torch::randperm(count);
    for (int64_t at = 0; at + kBatch * ranks <= count; at += kBatch * ranks) {
      const torch::Tensor mine = order.slice(0, at + rank * kBatch, at + (rank + 1) * kBatch);
      optimizer.zero_grad();
      absl::StatusOr<torch::Tensor> loss = parallel.Forward([&] {
        return torch::nn::functional::cross_entropy(
            net->forward(digits.images.index_select(0, mine)), digits.labels.index_select(0, mine));
      });
      if (!loss.ok()) return loss.status();
      if (absl::Status status = parallel.Backward(*loss); !status.ok()) return status;
      if (absl::Status status = parallel.Step(optimizer); !status.ok()) return status;
    }
  }
  return parallel.Stop();
}

double Accuracy(torch::nn::Sequential& net, const Digits& digits) {
  const torch::NoGradGuard no_grad;
  const int64_t count = digits.labels.size(0);
  const torch::Tensor guessed =
      net->forward(digits.images.slice(0, count - kTested, count)).argmax(1);
  return guessed.eq(digits.labels.slice(0, count - kTested, count))
      .to(torch::kDouble)
      .mean()
      .item<double>();
}

absl::Status Run(const std::string& path, const std::string& algorithm) {
  absl::StatusOr<Digits> digits = Read(path);
  if (!digits.ok()) return digits.status();
  absl::StatusOr<pelton::BackendOptions> options = pelton::OptionsFromEnvironment();
  if (!options.ok()) return options.status();
  absl::StatusOr<std::shared_ptr<pelton::Backend>> backend = pelton::Backend::Start(*options);
  if (!backend.ok()) return backend.status();
  torch::nn::Sequential net = MakeNet();
  auto parallel =
      pelton::ParallelModule::Wrap(*backend, net.ptr(), {.name = "digits", .algorithm = algorithm});
  if (!parallel.ok()) return parallel.status();
  if (absl::Status status = Train(**parallel, net, *digits, **backend); !status.ok()) return status;
  const double accuracy = Accuracy(net, *digits);
  std::printf("rank %d: %s recognises %.1f %%\n", (*backend)->rank().value(), algorithm.c_str(),
              100 * accuracy);
  return accuracy >= 0.95 ? absl::OkStatus()
                          : absl::InternalError("the net has not learned the digits");
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: train DIGITS [ALGORITHM]\n");
    return 2;
  }
  torch::set_num_threads(1);
  const absl::Status status =
      Run(arguments[1], argument_count > 2 ? arguments[2] : "gradient_allreduce");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
