"""The reports' HTML templates: bodies of pages, filled in and framed."""

from importlib.resources import files
from string import Template

from coterie.report.page import frame

AGAIN = "<h2>Do it again</h2>\n<p>The same command gives the same numbers.</p>\n<pre>{}</pre>"


def from_template(name: str, *, title: str, command: str, **values: str) -> str:
    """Return the page whose body is the template `name`, filled in; values are HTML."""
    folder = files("coterie.experiments.report")
    template = Template(folder.joinpath(name).read_text("utf-8"))
    body = template.substitute(title=title, again=AGAIN.format(command), **values)
    return frame(title, folder.joinpath("style.css").read_text("utf-8"), body, "; img-src data:")
