// Loads a model folder and streams a continuation of a text: stream_text FOLDER TEXT.

#include <iostream>

#include "reprise/engine/create_engine.h"
#include "reprise/models/load_model.h"

int main(int, char** argv) {
  const auto [folder, model] = reprise::LoadModel(argv[1], {{reprise::DefaultDevice()}}).value();
  const auto engine = reprise::CreateEngine(model.get()).value();
  const auto prompt = folder.tokenizer.value().Encode(argv[2]).value();
  engine->Add({.prompt = prompt, .stop_tokens = folder.eos_token_ids()}).value();
  reprise::StreamingDecoder text(*folder.tokenizer, reprise::SpecialTokenText::kSkip);
  text.Begin(prompt);  // keeps the space between the prompt and the answer
  for (std::vector<reprise::TokenEvent> events; engine->has_work(); events.clear()) {
    if (!engine->Step(events).ok()) return 1;
    for (const auto& event : events) std::cout << text.Push(event.token.value()) << std::flush;
  }
  std::cout << text.Finish() << std::endl;
}
