"""Rewards: components, and R* as their weighted sum."""
