"""Evaluation: runs, statistics, reports, and the viewer."""
