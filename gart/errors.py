"""Errors meant for the user: one sentence saying what is wrong, where, and what to do next."""


class GartError(Exception):
    """A failure the user can act on: the command line prints the message alone and exits 1."""

    exit_code = 1


class UsageError(GartError):
    """A wrong option, name or value given by the user."""

    exit_code = 2


class LibraryError(GartError):
    """A native library that cannot be used.

    Attributes:
        found: which and why.
        mend: what to do about it.
    """

    def __init__(self, found: str, mend: str) -> None:
        super().__init__(f"{found}; {mend}")
        self.found = found
        self.mend = mend
