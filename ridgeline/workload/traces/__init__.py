"""Trace files by format: one reader a file, found by name ("azure:FILE") or by a file's first line."""
