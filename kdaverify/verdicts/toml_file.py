"""TOML files that people write, read against a model; refusals name key and wanted value."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


class FileError(ValueError):
    """A file of people that cannot be used; the message names the file, place and remedy."""


def read_toml(path: Path, model: type[Model], what: str) -> Model:
    """The file as the model.

    Args:
        what: what the file is called in messages.
    Raises:
        FileError: it is absent, no TOML, or a key is missing, unknown or wrong.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{what}: {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{what}: {path} is no TOML: {error}") from None
    try:
        return model.model_validate(content)
    except ValidationError as error:
        reported = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'file'}: {one['msg']}"
            for one in error.errors(include_url=False)
        )
        raise FileError(f"{what}: {path}: {reported}") from None
