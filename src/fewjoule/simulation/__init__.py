"""All agents of a method at once, and what that costs before and after it is run."""
