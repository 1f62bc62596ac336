"""Simulated users: each says the next thing, or leaves."""
