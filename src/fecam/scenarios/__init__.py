"""Streams of tasks: which rows are learnt and judged at each step. Index arrays only."""
