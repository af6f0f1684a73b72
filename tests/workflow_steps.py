"""The steps of an action or of a job of GitHub: their conditions, their variables, and their scripts, which run here.

Of the language of expressions, this knows names of contexts, strings in single quotes, ``cancelled()``, ``!``, ``&&``,
``||``, ``==`` and ``!=``: what the action of this repository uses.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["evaluate", "fill", "list_names", "run_script"]

_EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")
_TOKEN = re.compile(r"'[^']*'|[a-z][\w.-]*(?:\(\))?|&&|\|\||[!=]=|!|[()]")
_OPERATORS = {"&&": "and", "||": "or", "!": "not", "==": "==", "!=": "!=", "(": "(", ")": ")", "cancelled()": "False"}
# Seconds of one script.
TIMEOUT_S = 300


def list_names(text: str) -> set[str]:
    """Return the names of contexts in the expressions of a text, such as ``inputs.base``."""
    tokens = (token for found in _EXPRESSION.findall(text) for token in _TOKEN.findall(found))
    return {token for token in tokens if "." in token and not token.startswith("'")}


def evaluate(expression: str, contexts: Mapping[str, Any]) -> Any:
    """Return the value of an expression; a name that the contexts lack is the empty string, as on GitHub."""
    tokens = _TOKEN.findall(expression)
    assert "".join(tokens) == expression.replace(" ", ""), expression
    words = [_OPERATORS.get(token) or repr(_read(token, contexts)) for token in tokens]
    return eval(" ".join(words), {"__builtins__": {}})


def _read(token: str, contexts: Mapping[str, Any]) -> Any:
    if token.startswith("'"):
        return token[1:-1]
    found: Any = contexts
    for name in token.split("."):
        found = found.get(name, "") if isinstance(found, Mapping) else ""
    return found


def fill(text: str, contexts: Mapping[str, Any]) -> str:
    """Return a text with the values of its expressions."""
    return _EXPRESSION.sub(lambda found: str(evaluate(found[1], contexts)), text)


def run_script(
    step: Mapping[str, Any], contexts: Mapping[str, Any], *, cwd: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the script of a step as a runner does, in a folder and with the variables of the runner and of the step."""
    own = {name: fill(str(value), contexts) for name, value in step.get("env", {}).items()}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=cwd,
        env={**os.environ, **variables, **own}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
