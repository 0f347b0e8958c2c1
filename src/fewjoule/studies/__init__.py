"""One study, end to end: its settings, the runner, and the run folder that it leaves."""
