"""Environments: each a domain (tasks, user, reward) made ready to run."""
