"""Several engines of one model behind one `EngineClient`: data parallelism."""
