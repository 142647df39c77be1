"""The command line of a checkout: python cli.py chat."""

from splashlite.cli import main

main()
