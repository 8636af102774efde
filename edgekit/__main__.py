"""`python -m edgekit`: the command line, without the script that pip installs."""

from edgekit.cli import main

main()
