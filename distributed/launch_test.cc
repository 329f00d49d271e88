#include "reprise/distributed/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "absl/time/clock.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Map = std::map<std::string, std::string>;

absl::StatusOr<RankPlace> From(const Map& map) {
  return RanksFromVariables([&map](const std::string& name) -> std::optional<std::string> {
    const auto it = map.find(name);
    if (it == map.end()) return std::nullopt;
    return it->second;
  });
}

void ExpectInvalid(const Map& map, const std::string& text) {
  const auto place = From(map);
  EXPECT_EQ(place.status().code(), absl::StatusCode::kInvalidArgument) << place.status();
  EXPECT_THAT(std::string(place.status().message()), HasSubstr(text));
}

TEST(RanksFromVariablesTest, WorldIsOneRankWithoutVariables) {
  const auto place = From({{"HOME", "/root"}});
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->ranks, Ranks{});
  EXPECT_EQ(place->store, "");
}

TEST(RanksFromVariablesTest, ReadsVariablesOfTorchrun) {
  Map map = {{"RANK", "5"},         {"WORLD_SIZE", "8"},           {"LOCAL_RANK", "1"},
             {"MASTER_PORT", "77"}, {"MASTER_ADDR", "10.0.0.1"},   {"LOCAL_WORLD_SIZE", "4"},
             {"PMI_RANK", "3"},     {"OMPI_COMM_WORLD_RANK", "2"}, {"SLURM_STEP_ID", "0"}};
  auto place = From(map);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->ranks, (Ranks{.rank = 5, .world = 8}));
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->store, "tcp:10.0.0.1:77");
  EXPECT_FALSE(place->serves_store);

  map["RANK"] = "0";
  EXPECT_TRUE(From(map)->serves_store);
  map["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  map["TORCHELASTIC_RUN_ID"] = "job";
  map["TORCHELASTIC_RESTART_COUNT"] = "2";
  place = From(map);
  EXPECT_FALSE(place->serves_store) << "torchrun serves it";
  EXPECT_EQ(place->run, "job/2") << "a restart uses different keys in the store";
}

TEST(RanksFromVariablesTest, ReadsVariablesOfOpenMpi) {
  Map map = {{"OMPI_COMM_WORLD_RANK", "0"},
             {"OMPI_COMM_WORLD_SIZE", "2"},
             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
             {"SLURM_PROCID", "7"}};
  const auto place = From(map);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->ranks, (Ranks{.rank = 0, .world = 2}));
  EXPECT_EQ(place->store, "tcp:127.0.0.1:29500") << "all ranks are on this machine";
  EXPECT_TRUE(place->serves_store);

  map["OMPI_COMM_WORLD_SIZE"] = "4";
  ExpectInvalid(map, "MASTER_ADDR is not set");
  map["MASTER_ADDR"] = "head";
  EXPECT_EQ(From(map)->store, "tcp:head:29500");
}

TEST(RanksFromVariablesTest, ReadsVariablesOfPmi) {
  const auto place =
      From({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MASTER_ADDR", "a"}});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->ranks, (Ranks{.rank = 3, .world = 4}));
  EXPECT_EQ(place->local_rank, 1);
}

TEST(RanksFromVariablesTest, ReadsVariablesOfSlurm) {
  Map map = {{"SLURM_PROCID", "1"},           {"SLURM_NTASKS", "4"},
             {"SLURM_LOCALID", "1"},          {"SLURM_JOB_ID", "123456"},
             {"SLURM_JOB_NODELIST", "other"}, {"SLURM_STEP_NODELIST", "gpu[07-09,12],login"}};
  EXPECT_EQ(From(map)->ranks, Ranks{}) << "a job script is not a rank";
  map["SLURM_STEP_ID"] = "2";
  auto place = From(map);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->ranks, (Ranks{.rank = 1, .world = 4}));
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->store, "tcp:gpu07:23458");
  for (const auto& [list, first] : Map{{"a1,a2", "a1"},
                                       {"a", "a"},
                                       {"n[3,5]", "n3"},
                                       {"n[11]", "n11"},
                                       {"n[01-02]-ib,m", "n01-ib"},
                                       {"r[1-2]n[03-05,07],m", "r1n03"},
                                       {"n[7", "n7"},
                                       {"n[", "n"}}) {
    map["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ(From(map)->store, "tcp:" + first + ":23458");
  }
  map["SLURM_STEP_NODELIST"] = "a";
  map["SLURM_JOB_ID"] = "4294967295";
  EXPECT_EQ(From(map)->store, "tcp:a:27297");
  map["MASTER_ADDR"] = "x";
  map["MASTER_PORT"] = "9";
  EXPECT_EQ(From(map)->store, "tcp:x:9");
}

TEST(RanksFromVariablesTest, WorldOfOneRankNeedsNoStore) {
  const auto place = From({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->store, "");
}

TEST(RanksFromVariablesTest, RejectsInvalidVariables) {
  ExpectInvalid({{"RANK", "1"}}, "WORLD_SIZE is not set");
  ExpectInvalid({{"WORLD_SIZE", "2"}}, "RANK is not set");
  ExpectInvalid({{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "RANK must be a number >= 0: got \"one\"");
  ExpectInvalid({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK must be a number >= 0");
  ExpectInvalid({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK must be less than WORLD_SIZE");
  ExpectInvalid({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set");
  ExpectInvalid({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "x"}}, "LOCAL_RANK must be");
  ExpectInvalid(
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}},
      "MASTER_PORT must be a port");
  ExpectInvalid({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}}, "SLURM_NTASKS is not set");
  ExpectInvalid({{"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_JOB_ID", "-1"}},
                "SLURM_JOB_ID must be a number >= 0");
}

std::string Touch(const std::string& name) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/" + name;
  std::ofstream(path) << "x";
  return path;
}

TEST(RunRanksTest, EveryRankRunsWithItsPlace) {
  const std::string folder = std::getenv("TEST_TMPDIR");
  const absl::Status status = RunRanks(3, [&](const RankPlace& place) -> absl::Status {
    const std::string rank = std::to_string(place.ranks.rank);
    if (place.ranks.world != 3 || place.local_rank != place.ranks.rank || place.serves_store) {
      return absl::InternalError("a wrong place");
    }
    if (place.store.rfind("file:", 0) != 0) return absl::InternalError("a wrong store");
    std::ofstream(place.store.substr(5) + rank) << "x";
    std::ofstream(folder + "/store") << std::filesystem::path(place.store.substr(5)).parent_path();
    Touch("ran" + rank);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  for (const char* name : {"/ran0", "/ran1", "/ran2"}) {
    EXPECT_TRUE(std::filesystem::exists(folder + name)) << name;
  }
  std::string store;
  std::ifstream(folder + "/store") >> store;
  ASSERT_GT(store.size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(store.substr(1, store.size() - 2)))
      << "the folder must have been removed";
}

TEST(RunRanksTest, AWorldOfOneHasNoStore) {
  EXPECT_TRUE(RunRanks(1, [](const RankPlace& place) {
                return place.store.empty() ? absl::OkStatus() : absl::InternalError(place.store);
              }).ok());
  EXPECT_EQ(RunRanks(0, [](const RankPlace&) { return absl::OkStatus(); }).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(RunRanksTest, ReturnsTheFirstFailure) {
  const absl::Status status = RunRanks(3, [](const RankPlace& place) -> absl::Status {
    if (place.ranks.rank == 1) return absl::NotFoundError(std::string(100000, 'x') + "no weights");
    absl::SleepFor(absl::Milliseconds(300));
    return absl::InternalError("a later one");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 1: x"), HasSubstr("no weights")))
      << "a message larger than a pipe comes whole";
}

TEST(RunRanksTest, NamesARankThatIsKilledOrExits) {
  const auto quick = RunRanksOptions{.grace = absl::Milliseconds(200)};
  absl::Status status = RunRanks(
      2,
      [](const RankPlace& place) {
        if (place.ranks.rank == 1) raise(SIGKILL);
        return absl::OkStatus();
      },
      quick);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 was killed by signal 9"));

  status = RunRanks(
      2,
      [](const RankPlace& place) {
        if (place.ranks.rank == 0) _exit(7);
        return absl::OkStatus();
      },
      quick);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 exited with status 7"));

  status = RunRanks(
      2, [](const RankPlace&) -> absl::Status { throw std::runtime_error("thrown"); }, quick);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("thrown"));
}

TEST(RunRanksTest, KillsRemainingRanksAfterTheGrace) {
  const absl::Time start = absl::Now();
  const absl::Status status = RunRanks(
      4,
      [](const RankPlace& place) -> absl::Status {
        if (place.ranks.rank == 2) return absl::InternalError("broken");
        // One rank ends within the grace period.
        absl::SleepFor(place.ranks.rank == 0 ? absl::Milliseconds(100) : absl::Seconds(100));
        Touch("late" + std::to_string(place.ranks.rank));
        return absl::OkStatus();
      },
      {.grace = absl::Milliseconds(500)});
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2: broken"));
  const std::string folder = std::getenv("TEST_TMPDIR");
  EXPECT_TRUE(std::filesystem::exists(folder + "/late0"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/late1"));
}

TEST(RunRanksTest, ChildrenEndWithTheirParent) {
  // The outer rank is killed while its own child ranks run.
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/orphan";
  const absl::Status status = RunRanks(1,
                                       [&](const RankPlace&) {
                                         return RunRanks(2, [&](const RankPlace& place) {
                                           if (place.ranks.rank == 0) {
                                             std::ofstream(path) << getpid();
                                             kill(getppid(), SIGKILL);
                                           }
                                           absl::SleepFor(absl::Seconds(100));
                                           return absl::OkStatus();
                                         });
                                       },
                                       {});
  EXPECT_THAT(std::string(status.message()), HasSubstr("killed by signal 9"));
  pid_t orphan = 0;
  std::ifstream(path) >> orphan;
  ASSERT_GT(orphan, 0);
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (kill(orphan, 0) == 0 && absl::Now() < deadline) {
    std::string state;
    std::ifstream stat("/proc/" + std::to_string(orphan) + "/stat");
    stat >> state >> state >> state;
    if (state == "Z") break;  // ended; the process that adopted it has not waited for it yet
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_LT(absl::Now(), deadline) << "the child has not ended";
}

TEST(RunRanksTest, RejectsProcessWithThreads) {
  bool done = false;
  std::thread thread([&] {
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) absl::SleepFor(absl::Milliseconds(1));
  });
  const absl::Status status = RunRanks(2, [](const RankPlace&) { return absl::OkStatus(); });
  __atomic_store_n(&done, true, __ATOMIC_RELEASE);
  thread.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 2 threads"));
}

}  // namespace
}  // namespace reprise
