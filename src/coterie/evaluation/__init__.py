"""Off-policy evaluation: what would another policy have earned on a log?"""

from coterie.data.logs.interactions import Interaction, InteractionLog, open_interactions
from coterie.evaluation.estimates import Estimate, estimate
from coterie.evaluation.evaluate import Evaluation, Result, Window, evaluate
from coterie.evaluation.evidence import Evidence, Span
from coterie.evaluation.page import write_evaluation
from coterie.evaluation.words import as_json

__all__ = [
    "Estimate", "Evaluation", "Evidence", "Interaction", "InteractionLog", "Result", "Span", "Window",
    "as_json", "estimate", "evaluate", "open_interactions", "write_evaluation",
]  # fmt: skip
