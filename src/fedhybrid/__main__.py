"""python -m fedhybrid is the command line."""

from .cli import app

app()
