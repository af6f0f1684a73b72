"""The source files of an implementation, as the worker that loaded it read them."""

import msgspec

__all__ = ["Sources"]


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The files of an implementation's own code, and what else this code imports."""

    # Absolute path of the folder to which the names in ``files`` are relative. The path is not stored, because it may
    # contain a user name.
    folder: str = ""
    # The files: the implementation's module, and the modules of its package or folder that it imports.
    files: list[str] = []
    # SHA-256 of the names and contents of the files, in hexadecimal; empty if no file was found.
    digest: str = ""
    # Top-level names of the imported modules outside ``files``, without the standard library.
    imports: list[str] = []
