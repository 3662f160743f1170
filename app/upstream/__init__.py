"""The page in front of another server: an `EngineClient` whose runs are streams of an upstream."""
