"""The errors that cross the public API: each names the value, what was expected, and the way out."""


class CoterieError(Exception):
    """The parent of every error that coterie raises on purpose."""


class ParameterError(CoterieError, ValueError):
    """A setting that no policy, world or command can work with."""


class ContextError(CoterieError, ValueError):
    """A candidate list or context that cannot be read."""


class PayoffError(CoterieError, ValueError):
    """A payoff that is not a number in [-1, 1]."""


class NumberError(CoterieError, ArithmeticError):
    """An estimate or an update that would not be a finite number, or too large; nothing has changed."""


class UserError(CoterieError, LookupError):
    """A user who cannot be named so, or who is not known."""


class FileError(CoterieError):
    """A file that cannot be read or written as what it should be."""


class MissingExtraError(CoterieError, ImportError):
    """A part of coterie whose optional dependencies are not installed."""


class UnavailableError(CoterieError):
    """A part of the users' models that cannot be asked for now."""


class ServiceError(CoterieError):
    """A request that the service refused: its status, the code for programs, and the message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class NoAnswerError(CoterieError):
    """A call that the service did not answer, however often it was tried within its time."""
