"""The error of a verdict that is looked for again and again as a run goes on.

Each look has a test of its own, and the error of all of them adds up. Look k spends error / (k * (k + 1)), which sums
to k / (k + 1) of the error after k looks, and never to more than all of it: the error-spending function of a
group-sequential test (Lan and DeMets, Biometrika 70, 1983). The looks are held together by Bonferroni's inequality, so
the error holds whatever their dependence, and however the data decide whether there is a next look.
"""

from __future__ import annotations


def confidence_of_look(confidence: float, look: int) -> float:
    """At which look `look`, from 1, tests so that the verdict has `confidence` at whichever look it is found."""
    return 1 - (1 - confidence) / (look * (look + 1))
