"""Engines turn a RequestPlan and a Pacing into a RunRecord. They import workloads, and nothing above."""
