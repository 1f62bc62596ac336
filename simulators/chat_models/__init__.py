"""Chat models: one protocol, and a backend for each way to run a model."""
