"""`python -m deuz_workers.cli`: the same as `deuz`, where scripts of the environment are not on the path."""

from deuz_workers.cli import main

main()
