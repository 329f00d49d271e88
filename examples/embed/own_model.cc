// A model with kernels of one's own (counting_model.h) under the engine: continuous batching, the
// cache, captured decode steps and sampling are the toolkit's.

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "counting_model.h"
#include "example.h"
#include "reprise/engine/create_engine.h"

int main() {
  CountingModel model(ExampleDevice());
  const std::unique_ptr<reprise::Engine> engine = Check(reprise::CreateEngine(&model, {}));
  std::map<int64_t, std::vector<int32_t>> texts;
  for (const int first : {3, 7, 12}) {
    const reprise::SequenceId id =
        Check(engine->Add({.prompt = {first, first + 1, first + 2}, .max_new_tokens = 8}));
    texts[id.value()] = {};
  }
  for (std::vector<reprise::TokenEvent> events; engine->has_work(); events.clear()) {
    Check(engine->Step(events));
    for (const reprise::TokenEvent& event : events) {
      Check(event.error);
      texts[event.sequence.value()].push_back(*event.token);
    }
  }
  std::cout << "own_model:";
  for (const auto& [id, tokens] : texts) {
    for (const int32_t token : tokens) std::cout << ' ' << token;
    std::cout << (id == texts.rbegin()->first ? "" : ",");
  }
  std::cout << std::endl;
  const reprise::GraphReport& graphs = ModelRunnerOf(*engine).graph_report();
  Expect(graphs.num_replays() > 0, "decode steps to be replayed graphs");
}
