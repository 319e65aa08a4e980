"""For the reference: show the examples of docstrings as code. A docstring has them as `>>>` lines, unmarked."""

from typing import Any

import griffe


class FencedExamples(griffe.Extension):
    """Put each block of examples between fences."""

    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return the text with fences around what begins with `>>>` and ends with an empty line."""
    lines, inside = [], False
    for line in text.splitlines():
        begins = line.lstrip().startswith(">>>")
        if begins and not inside:
            lines += ["", "```pycon"]
        elif inside and not line.strip():
            lines.append("```")
        inside = begins or (inside and bool(line.strip()))
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
