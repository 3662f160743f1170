"""GGUF files, llama.cpp's format: config, tokenizer, chat template and weights in one file."""
