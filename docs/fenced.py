"""For the reference: show the examples in docstrings as code. Most are `>>>` lines without fences."""

from typing import Any

import griffe


class FencedExamples(griffe.Extension):
    """Put each block of examples between fences."""

    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return the text with fences around each block from a `>>>` line to an empty line.

    Below a heading `Examples` griffe adds them itself.
    """
    lines: list[str] = []
    inside = marked = False  # in a block of examples; below a heading
    for line in text.splitlines():
        if line.lstrip().startswith(">>>") and not inside:
            inside, marked = True, bool(lines) and lines[-1].startswith("---")
            lines += [] if marked else ["", "```pycon"]
        elif inside and not line.strip():
            lines += [] if marked else ["```"]
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside and not marked else lines)
