"""The reports' HTML templates: bodies of pages, filled in and framed."""

from html import escape
from importlib.resources import files
from string import Template

import coterie
from coterie.experiments.study.compare import Plan
from coterie.report.page import frame

AGAIN = "<h2>Do it again</h2>\n<p>The same command gives the same numbers.</p>\n<pre>{}</pre>"


def from_template(name: str, plan: Plan, *, title: str, command: str, **values: str) -> str:
    """Return the page whose body is the template `name`, filled in; `title` and `values` are HTML."""
    folder = files("coterie.experiments.report")
    template = Template(folder.joinpath(name).read_text("utf-8"))
    values |= {
        "again": AGAIN.format(escape(command)),
        "runs": f"{plan.n_runs} {'run' if plan.n_runs == 1 else 'runs'}",
        "seeds": ", ".join(map(str, plan.seeds)),
        "version": escape(coterie.__version__),
    }
    body = template.substitute(title=title, **values)
    return frame(title, folder.joinpath("style.css").read_text("utf-8"), body, "; img-src data:")
