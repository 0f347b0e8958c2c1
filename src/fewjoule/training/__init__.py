"""Descent on one device: offline training of the agents' own models, and few-shot adaptation."""
