"""The error for a value of a job that cannot be used."""

from collections.abc import Callable

__all__ = ["JobError"]


class JobError(ValueError):
    """A job that cannot be run; the message is one line, and names the field, the need, what came, and the remedy.

    ``field`` is the name of the field; None: the fault belongs to no single field. In ``sentence``, a name in braces is
    that of another field, or of one of ``values``. As text, the error has the names of the fields, which are the names
    of the arguments in Python; a command line and a configuration file name the fields by ``describe``.
    """

    def __init__(self, field: str | None, sentence: str, **values: object) -> None:
        self.field, self.sentence, self.values = field, sentence, values
        super().__init__(self.describe(str))

    def describe(self, name: Callable[[str], str]) -> str:
        """Return the message with the names that ``name`` returns for fields."""
        told = self.sentence.format_map(_Names(self.values, name))
        return told if self.field is None else f"{name(self.field)}: {told}"


class _Names(dict[str, object]):
    """The values of a sentence, and the names of all fields."""

    def __init__(self, values: dict[str, object], name: Callable[[str], str]) -> None:
        super().__init__(values)
        self._name = name

    def __missing__(self, field: str) -> str:
        return self._name(field)
