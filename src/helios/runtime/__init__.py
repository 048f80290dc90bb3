"""The real world: clock, executor thread, tokenizer, process link, metrics, trace file."""
