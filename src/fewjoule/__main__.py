"""`python -m fewjoule` is the command line."""

from fewjoule.cli import main

main()
