// The main of a fuzz test without libFuzzer: every seed as it is, cut short, and with bytes
// changed, through LLVMFuzzerTestOneInput. What an hour of fuzzing has found stays found, in each
// ordinary test run.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

constexpr int kNumCuts = 64;
constexpr int kNumChanged = 256;

void RunInput(const Bytes& input) {
  // A copy of exactly this size, so that a sanitizer sees a read past its end.
  const Bytes exact(input);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

class SeedTest : public testing::Test {
 public:
  explicit SeedTest(std::string path) : path_(std::move(path)) {}

  void TestBody() override {
    std::ifstream file(path_, std::ios::binary);
    ASSERT_TRUE(file.good()) << "cannot read " << path_;
    const Bytes seed((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    RunInput(seed);
    for (int i = 0; i < kNumCuts; ++i) {
      RunInput(
          Bytes(seed.begin(), seed.begin() + static_cast<int64_t>(seed.size()) * i / kNumCuts));
    }
    if (seed.empty()) return;
    // The same changes in each run: the generator's seed is its default.
    std::mt19937_64 random;
    for (int i = 0; i < kNumChanged; ++i) {
      Bytes changed = seed;
      for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n) {
        changed[random() % changed.size()] = static_cast<uint8_t>(random());
      }
      RunInput(changed);
    }
  }

 private:
  std::string path_;
};

std::string TestName(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string path = argv[i];
    testing::RegisterTest("Seeds", TestName(path).c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [path] { return new SeedTest(path); });
  }
  return RUN_ALL_TESTS();
}
