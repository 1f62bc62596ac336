"""Evolving intent for agents that act between turns: search and software engineering, with a pluggable loop and verifier."""
