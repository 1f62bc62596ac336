"""The environments of CollabLLM (ICML 2025)."""
