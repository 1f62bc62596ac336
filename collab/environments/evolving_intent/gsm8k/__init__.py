"""Evolving-intent GSM8K by rules: text, numbers, calculator annotations, questions and counterfactuals, without any model."""
