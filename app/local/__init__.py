"""The running model for the engine in a visitor's browser: its files, written and served."""
