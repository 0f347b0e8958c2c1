"""Data files that the package carries, each with its licence beside it."""
