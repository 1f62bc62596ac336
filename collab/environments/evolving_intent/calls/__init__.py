"""Evolving-intent function calling on BFCL records, by rules."""
