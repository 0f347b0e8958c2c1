"""Task families, and what an agent and a new task are."""
