"""Federated meta-learning that counts its energy."""
