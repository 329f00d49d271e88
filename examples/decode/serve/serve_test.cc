// The command over pipes and over a socket, with the project's model.

#include "examples/decode/serve/serve.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "examples/decode/run.h"
#include "examples/decode/serve/protocol.h"
#include "examples/decode/serve/unix_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;

DecodeOptions ServeOptions() {
  DecodeOptions options;
  options.command = DecodeCommand::kServe;
  options.dtype = DType::kFloat32;
  options.device = DeviceChoice::kCpu;
  options.engine.runner.max_seq_len = 256;
  return options;
}

// One end of a connection: lines out, events in.
class LineClient {
 public:
  explicit LineClient(int descriptor) : descriptor_(descriptor) {}
  ~LineClient() { close(descriptor_); }

  LineClient(const LineClient&) = delete;
  LineClient& operator=(const LineClient&) = delete;

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return;  // the server has stopped
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }
  void SendLine(const json& line) { Send(line.dump() + "\n"); }
  void FinishSending() { shutdown(descriptor_, SHUT_WR); }

  // The next event; nullopt at the end.
  std::optional<json> Receive() {
    std::array<char, 4096> buffer;
    while (true) {
      if (const size_t end = received_.find('\n'); end != std::string::npos) {
        json event = json::parse(received_.substr(0, end));
        received_.erase(0, end + 1);
        return event;
      }
      const ssize_t count = read(descriptor_, buffer.data(), buffer.size());
      if (count <= 0) return std::nullopt;
      received_.append(buffer.data(), static_cast<size_t>(count));
    }
  }
  std::vector<json> ReceiveAll() {
    std::vector<json> events;
    while (std::optional<json> event = Receive()) events.push_back(*std::move(event));
    return events;
  }

 private:
  int descriptor_;
  std::string received_;
};

// A server over a pair of sockets, and the one client that it has.
class PipeServer {
 public:
  explicit PipeServer(const DecodeOptions& options) {
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    client_.emplace(ends[0]);
    server_end_ = ends[1];
    thread_ = std::thread([this, options] {
      std::ostringstream err;
      status_ = RunServe(options, {.in = server_end_, .out = server_end_, .err = err}, {});
      shutdown(server_end_, SHUT_RDWR);
    });
  }
  ~PipeServer() {
    if (thread_.joinable()) Finish();
    close(server_end_);
  }

  LineClient& client() { return *client_; }

  // Sends no more, and returns the rest of the events.
  std::vector<json> Finish() {
    client_->FinishSending();
    std::vector<json> events = client_->ReceiveAll();
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_;
    return events;
  }

 private:
  std::optional<LineClient> client_;
  int server_end_;
  absl::Status status_;
  std::thread thread_;
};

std::vector<json> Serve(const std::string& lines, const DecodeOptions& options = ServeOptions()) {
  PipeServer server(options);
  server.client().Send(lines);
  return server.Finish();
}

// What the events of one request say together.
struct Answer {
  std::string text;
  std::vector<int> tokens;
  json end;  // the last event
};

std::map<std::string, Answer> AnswersOf(const std::vector<json>& events) {
  std::map<std::string, Answer> answers;
  for (const json& event : events) {
    Answer& answer = answers[event.value("id", json()).dump()];
    EXPECT_TRUE(answer.end.is_null()) << "after its end: " << event;
    if (event.at("event") == "token") {
      answer.tokens.push_back(event.at("token"));
      answer.text += event.at("text").get<std::string>();
    } else {
      answer.text += event.value("text", "");
      answer.end = event;
    }
  }
  return answers;
}

// As `decode run` has them.
std::vector<json> RunTexts(const std::vector<Prompt>& prompts, int max_new_tokens) {
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunDecode({.prompts = prompts,
                                         .max_new_tokens = max_new_tokens,
                                         .dtype = DType::kFloat32,
                                         .device = DeviceChoice::kCpu,
                                         .output = OutputChoice::kJson},
                                        {.out = out, .err = err});
  EXPECT_TRUE(status.ok()) << status;
  std::vector<json> texts;
  for (const absl::string_view line : absl::StrSplit(out.str(), '\n', absl::SkipEmpty())) {
    texts.push_back(json::parse(line.begin(), line.end()));
  }
  texts.pop_back();  // statistics
  return texts;
}

TEST(ServeTest, ARequestGivesTokensAndAnEnd) {
  const auto answers =
      AnswersOf(Serve("{\"id\":\"a\",\"prompt\":\"zero-content\\n\"}\n"
                      "\n"
                      "{\"id\":2,\"prompt_tokens\":[0,1765,200],\"max_new_tokens\":4}"));
  ASSERT_THAT(answers, SizeIs(2));
  const Answer& text = answers.at("\"a\"");
  EXPECT_EQ(text.text, "adj.\nSyn. {content-free}.");
  EXPECT_EQ(text.end.at("event"), "end");
  EXPECT_EQ(text.end.at("finish_reason"), "stop");
  EXPECT_EQ(text.end.at("usage").at("generated_tokens"), text.tokens.size());
  const Answer& tokens = answers.at("2");
  EXPECT_THAT(tokens.tokens, SizeIs(4));
  EXPECT_EQ(tokens.end.at("finish_reason"), "length");
  EXPECT_EQ(tokens.end.at("usage"),
            (json{{"prompt_tokens", 3}, {"cached_tokens", 0}, {"generated_tokens", 4}}));
}

// An answer that is predicted as it comes: the same text, in fewer steps.
TEST(ServeTest, APredictionChangesNoAnswer) {
  DecodeOptions options = ServeOptions();
  options.max_new_tokens = 24;
  options.stop = StopChoice::kAtLengthOnly;
  const std::string first = R"({"id":1,"prompt":"foo\n"})";
  const std::string text = AnswersOf(Serve(first + "\n", options)).at("1").text;
  options.engine.runner.speculation = {.max_drafts = 4, .proposer = NgramProposer{}};
  options.draft = DraftChoice();
  const auto answers = AnswersOf(Serve(
      absl::StrCat(first, "\n", R"({"id":2,"prompt":"foo\n","predicted":)", json(text).dump(),
                   "}\n", R"({"id":3,"prompt":"foo\n","predicted":"nothing of the kind"})", "\n"),
      options));
  for (const char* const id : {"1", "2", "3"}) EXPECT_EQ(answers.at(id).text, text) << id;
}

TEST(ServeTest, FieldsOfALineChangeItsTextAlone) {
  DecodeOptions options = ServeOptions();
  options.max_new_tokens = 12;
  const auto answers = AnswersOf(Serve(
      R"({"id":1,"prompt":"foo\n"})"
      "\n"
      R"({"id":2,"prompt":"foo\n","stop":"e","ignore_eos":true,"max_new_tokens":40})"
      "\n"
      R"({"id":3,"prompt":"foo\n","log_probs":2})"
      "\n"
      R"({"id":4,"prompt":"foo\n","presence_penalty":100,"ignore_eos":true,"max_new_tokens":40})"
      "\n"
      R"({"id":5,"prompt":"foo\n","timeout_s":0})"
      "\n",
      options));
  EXPECT_EQ(answers.at("1").text,
            RunTexts({{.content = "foo\n"}}, 12)[0].at("text").get<std::string>());
  EXPECT_EQ(answers.at("2").end.at("finish_reason"), "stop");
  const std::string whole = RunTexts({{.content = "foo\n"}}, 40)[0].at("text");
  EXPECT_EQ(answers.at("2").text, whole.substr(0, whole.find('e')));
  EXPECT_EQ(answers.at("3").tokens, answers.at("1").tokens);
  std::vector<int> penalised = answers.at("4").tokens;  // no token comes twice
  EXPECT_THAT(penalised, SizeIs(40));
  std::sort(penalised.begin(), penalised.end());
  EXPECT_EQ(std::adjacent_find(penalised.begin(), penalised.end()), penalised.end());
  EXPECT_EQ(answers.at("5").end.at("finish_reason"), "deadline");
}

TEST(ServeTest, TextThatIsHeldBackIsReturnedHoweverTheRequestEnds) {
  DecodeOptions options = ServeOptions();
  options.stop = StopChoice::kAtLengthOnly;
  options.max_new_tokens = 200;
  const std::string whole =
      AnswersOf(Serve("{\"id\":1,\"prompt\":\"foo\\n\"}\n", options)).at("1").text;
  PipeServer server(options);
  LineClient& client = server.client();
  // All of the text may become the stop.
  const json line = {{"id", "cancelled"}, {"prompt", "foo\n"}, {"stop", whole + "x"}};
  client.SendLine(line);
  std::vector<json> events = {*client.Receive()};
  client.SendLine({{"cancel", "cancelled"}});
  json length = line;
  length.update({{"id", "length"}, {"max_new_tokens", 8}});
  client.SendLine(length);
  for (json& event : server.Finish()) events.push_back(std::move(event));
  const auto answers = AnswersOf(events);
  for (const std::string id : {"cancelled", "length"}) {
    const Answer& answer = answers.at(json(id).dump());
    EXPECT_EQ(answer.end.at("finish_reason"), id);
    EXPECT_FALSE(answer.text.empty()) << id;
    EXPECT_EQ(answer.text, whole.substr(0, answer.text.size())) << id;
    EXPECT_EQ(answer.end.contains("text"), id == "cancelled");
  }
  for (size_t i = 0; i < events.size(); ++i) {
    const bool is_last = i + 2 == events.size() && events[i].at("id") == "length";
    if (events[i].at("event") == "token" && !is_last) EXPECT_EQ(events[i].at("text"), "");
  }
}

TEST(ServeTest, StopTokensEndAnAnswer) {
  const auto whole = AnswersOf(Serve("{\"id\":1,\"prompt\":\"foo\\n\"}\n")).at("1");
  ASSERT_GT(whole.tokens.size(), 3u);
  const json line = {{"id", 1}, {"prompt", "foo\n"}, {"stop_tokens", whole.tokens[2]}};
  const auto stopped = AnswersOf(Serve(line.dump())).at("1");
  EXPECT_EQ(stopped.end.at("finish_reason"), "stop");
  EXPECT_LE(stopped.tokens.size(), 3u);
  EXPECT_EQ(stopped.tokens.back(), whole.tokens[2]);
  EXPECT_EQ(stopped.text, whole.text.substr(0, stopped.text.size()));
  json included = line;
  included["include_stop"] = true;
  const std::string text = AnswersOf(Serve(included.dump())).at("1").text;
  EXPECT_GT(text.size(), stopped.text.size());
  EXPECT_EQ(text, whole.text.substr(0, text.size()));
}

TEST(ServeTest, AHostileLineGivesOneErrorAndNothingElse) {
  const std::string hostile[] = {
      "not json",
      "{\"id\":9,\"prompt\":\"\xff\xfe\"}",
      R"({"id":9,"prompt":"a","unknown":1})",
      R"({"id":9,"prompt":["a"]})",
      R"({"id":9,"prompt_tokens":[4096]})",  // beyond the vocabulary: the engine says so
      R"({"id":9,"prompt":"a","top_p":0})",
      std::string(1 << 16, '['),
      "{\"id\":9,\"prompt\":\"" + std::string(size_t{100} << 20, 'x') + "\"}",
      std::string("\0\0\0", 3),
      "{\"id\":9,\"prompt_tokens\":[" +
          [] {
            std::string tokens = "5";
            for (int i = 0; i < 400; ++i) tokens += ",5";  // longer than max_seq_len
            return tokens;
          }() +
          "]}",
  };
  std::string lines;
  for (const std::string& line : hostile) lines += line + "\n";
  lines += R"({"id":"good","prompt":"zero-content\n"})";
  const std::vector<json> events = Serve(lines);
  std::vector<int> numbers;
  std::vector<json> others;
  for (const json& event : events) {
    if (event.at("event") == "error") {
      numbers.push_back(event.at("line"));
      EXPECT_LT(event.at("error").get<std::string>().size(), 400u);
    } else {
      others.push_back(event);
    }
  }
  std::sort(numbers.begin(), numbers.end());  // those of the engine come later
  EXPECT_THAT(numbers, testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  const auto answers = AnswersOf(others);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers.at("\"good\"").text, "adj.\nSyn. {content-free}.");
}

TEST(ServeTest, ARequestIsCancelledByItsIdWhichMayThenBeUsedAgain) {
  DecodeOptions options = ServeOptions();
  options.engine.runner.max_seq_len = 2048;
  PipeServer server(options);
  LineClient& client = server.client();
  const json endless = {
      {"id", 1}, {"prompt", "foo\n"}, {"ignore_eos", true}, {"max_new_tokens", 100000}};
  client.SendLine(endless);
  EXPECT_EQ(client.Receive()->at("event"), "token");
  client.SendLine(endless);  // the id is in use
  client.SendLine({{"cancel", "unknown"}});
  std::optional<json> event = client.Receive();
  while (event->at("event") == "token") event = client.Receive();
  EXPECT_EQ(event->at("event"), "error");
  EXPECT_THAT(event->at("error").get<std::string>(), HasSubstr("expected one that is not in use"));
  client.SendLine({{"cancel", 1}});
  while ((event = client.Receive())->at("event") == "token") {
  }
  EXPECT_EQ(event->at("finish_reason"), "cancelled");
  client.SendLine({{"id", 1}, {"prompt", "zero-content\n"}});
  EXPECT_EQ(AnswersOf(server.Finish()).at("1").text, "adj.\nSyn. {content-free}.");
}

TEST(ServeTest, MoreRequestsThanMayWaitAreRefused) {
  DecodeOptions options = ServeOptions();
  options.engine.runner.max_num_seqs = 1;
  options.engine.scheduler.max_waiting = 2;
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += absl::StrCat(R"({"id":)", i, R"(,"prompt":"foo\n","max_new_tokens":30})", "\n");
  }
  const std::vector<json> events = Serve(lines, options);
  int num_refused = 0;
  int num_ended = 0;
  for (const json& event : events) {
    num_refused += event.at("event") == "error" ? 1 : 0;
    num_ended += event.at("event") == "end" ? 1 : 0;
  }
  EXPECT_EQ(num_refused + num_ended, 20);
  EXPECT_GE(num_refused, 1);
  EXPECT_GE(num_ended, 2);
}

TEST(ServeTest, DraftsDoNotChangeTexts) {
  DecodeOptions options = ServeOptions();
  options.engine.runner.speculation = {.max_drafts = 4, .proposer = NgramProposer{}};
  options.draft = DraftChoice();
  const std::string lines = R"({"id":1,"prompt":"foo\n","max_new_tokens":40})";
  EXPECT_EQ(AnswersOf(Serve(lines, options)).at("1").text, AnswersOf(Serve(lines)).at("1").text);
}

// A server at a socket, until SIGTERM.
class SocketServer {
 public:
  explicit SocketServer(DecodeOptions options) {
    EXPECT_NE(mkdtemp(folder_), nullptr);
    path_ = std::string(folder_) + "/s";
    options.socket = path_;
    thread_ = std::thread([this, options] {
      status_ = RunServe(options, {.in = -1, .out = -1, .err = err_}, {});
      has_ended_ = true;
    });
    while (!has_ended_) {
      const absl::StatusOr<int> client = ConnectToUnixSocket(path_);
      if (client.ok()) {
        close(*client);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "the server has ended";
  }
  ~SocketServer() {
    if (thread_.joinable()) Stop();
    rmdir(folder_);
  }

  LineClient Connect() const {
    const absl::StatusOr<int> client = ConnectToUnixSocket(path_);
    EXPECT_TRUE(client.ok()) << client.status();
    return LineClient(*client);
  }

  void Stop() {
    raise(SIGTERM);
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_;
    EXPECT_NE(access(path_.c_str(), F_OK), 0) << "the file is still there";
  }

  std::string err() const { return err_.str(); }

 private:
  char folder_[32] = "/tmp/serve_XXXXXX";
  std::string path_;
  std::ostringstream err_;
  std::atomic<bool> has_ended_{false};
  absl::Status status_;
  std::thread thread_;
};

// Each client has a text of its own, and a second request that it cancels; some go away in between.
TEST(ServeTest, SixtyFourClientsAtOnceGetTheTextsOfRun) {
  constexpr int kClients = 64;
  constexpr int kTokens = 24;
  std::vector<Prompt> prompts;
  const char* const words[] = {"hacker",    "foo",      "kluge", "zero-content",
                               "LOGIC, n.", "YEAR, n.", "bit",   "daemon"};
  for (int i = 0; i < kClients; ++i) {
    prompts.push_back({.content = absl::StrCat(words[i % 8], i < 8 ? "\n" : absl::StrCat(" ", i))});
  }
  const std::vector<json> expected = RunTexts(prompts, kTokens);
  ASSERT_THAT(expected, SizeIs(kClients));

  DecodeOptions options = ServeOptions();
  options.max_new_tokens = kTokens;
  SocketServer server(options);
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const json mine = {{"id", "mine"}, {"prompt", std::get<std::string>(prompts[i].content)}};
      const json endless = {
          {"id", 0}, {"prompt", "foo\n"}, {"ignore_eos", true}, {"max_new_tokens", 200}};
      if (i % 8 == 3) {  // another client at the same place goes away in the middle of a text
        LineClient leaving = server.Connect();
        leaving.SendLine(endless);
        leaving.Receive();
      }
      LineClient client = server.Connect();
      // At once, so that the cancel comes before the end.
      std::string lines = mine.dump() + "\n";
      if (i % 4 == 0) lines += "not a request\n";
      if (i % 2 == 0) lines = endless.dump() + "\n" + lines + "{\"cancel\":0}\n";
      client.Send(lines);
      client.FinishSending();
      const std::vector<json> events = client.ReceiveAll();
      int num_errors = 0;
      std::vector<json> others;
      for (const json& event : events) {
        if (event.at("event") == "error") {
          ++num_errors;
        } else {
          others.push_back(event);
        }
      }
      EXPECT_EQ(num_errors, i % 4 == 0 ? 1 : 0);
      auto answers = AnswersOf(others);
      EXPECT_THAT(answers, SizeIs(i % 2 == 0 ? 2 : 1)) << i;
      const Answer& answer = answers["\"mine\""];
      EXPECT_EQ(answer.text, expected[i].at("text").get<std::string>()) << i;
      EXPECT_EQ(json(answer.tokens), expected[i].at("tokens")) << i;
      EXPECT_EQ(answer.end.value("finish_reason", ""),
                expected[i].at("finish_reason").get<std::string>())
          << i;
      if (i % 2 == 0) {
        EXPECT_EQ(answers["0"].end.value("finish_reason", ""), "cancelled") << i;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  server.Stop();
  EXPECT_THAT(server.err(), HasSubstr("serving at "));
}

TEST(ServeTest, ASignalEndsWhatRunsAndSaysSo) {
  SocketServer server(ServeOptions());
  LineClient client = server.Connect();
  LineClient silent = server.Connect();
  client.SendLine(
      {{"id", 1}, {"prompt", "foo\n"}, {"ignore_eos", true}, {"max_new_tokens", 100000}});
  ASSERT_TRUE(client.Receive().has_value());
  server.Stop();
  const std::vector<json> events = client.ReceiveAll();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().at("event"), "end");
  EXPECT_THAT(silent.ReceiveAll(), SizeIs(0));
}

TEST(ServeTest, WhatKeepsItFromStartingIsSaid) {
  DecodeOptions options = ServeOptions();
  options.model = "/no/such/model";
  std::ostringstream err;
  EXPECT_THAT(std::string(RunServe(options, {.in = -1, .out = -1, .err = err}, {}).message()),
              HasSubstr("/no/such/model"));
  options = ServeOptions();
  options.socket = "/no/such/folder/s";
  EXPECT_THAT(std::string(RunServe(options, {.in = -1, .out = -1, .err = err}, {}).message()),
              HasSubstr("--socket: /no/such/folder/s"));
}

}  // namespace
}  // namespace reprise
