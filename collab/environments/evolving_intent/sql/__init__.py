"""Evolving-intent text-to-SQL on Spider and BIRD records, by rules."""
