"""Evolving intent: single-turn tasks as conversations whose user reveals, revises and switches."""
