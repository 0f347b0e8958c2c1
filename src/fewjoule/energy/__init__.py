"""Meters, operation counts, radio links and the ledger that keeps every joule with its source."""
