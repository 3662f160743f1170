"""GGUF files, as llama.cpp reads them: config, tokenizer, chat template and weights in one."""
