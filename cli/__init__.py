"""The command line, installed as `gart.cli`: one file per command, no numerics.

Nothing slow (torch, nerfbaselines, OpenCV) is imported before a command runs, so help is instant.
"""

from gart.cli.app import app, main

__all__ = ["app", "main"]
